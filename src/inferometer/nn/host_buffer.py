"""Memory of the host that a device copies from and to at the speed of the link."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

from inferometer.errors import UserError
from inferometer.model.byte_size import gib

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""


class HostBuffer:
    """`size` bytes, page-aligned, pinned where `device` is a GPU.

    tensor: uint8 (size,), all of it. view: the same for the system's calls.

    torch's own pinned memory comes in powers of two, which for large layers would be a third too much: here the pages of an ordinary map
    are registered. Raises UserError where the system has too little memory or lets the process pin too little.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        try:
            memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            raise UserError(f"no {gib(size)} of host memory are left; lower --host-memory or give --disk DIR") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to take and to pin
        self.view = memoryview(memory)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=torch.uint8, count=size) if size else torch.empty(0, dtype=torch.uint8)
        self._unpin: Any = None
        if device.type == "cuda" and size:
            _pin(self.tensor)
            # Not at exit: the process takes its pins along, and the driver may be gone by then.
            self._unpin = weakref.finalize(self, _unpin, self.tensor)
            self._unpin.atexit = False

    def close(self) -> None:
        """Lets the pages go as pinned ones; their memory goes with the last tensor that shows it. No copy may be under way."""
        if self._unpin is not None:
            self._unpin()
        self.view.release()
        self.tensor = self.tensor[:0].clone()


def _pin(tensor: Tensor) -> None:
    code = int(_runtime().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, PORTABLE))
    if code:
        raise UserError(
            f"the system did not pin {gib(tensor.nbytes)} of host memory (CUDA error {code}); lower --host-memory, "
            "raise the limit of locked memory (ulimit -l), or give --disk DIR"
        )


def _unpin(tensor: Tensor) -> None:
    _runtime().cudaHostUnregister(tensor.data_ptr())


def _runtime() -> Any:
    cuda: Any = torch.cuda
    cuda.init()
    return cuda.cudart()
