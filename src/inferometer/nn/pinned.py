"""Host memory that a GPU copies from and to by itself."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor


class _Mapping(mmap.mmap):
    """Memory of this process that goes back when nobody looks at it any longer."""

    locked_by: Any = None
    address = 0

    def lock(self, runtime: Any, address: int) -> int:
        """Page-locks it; the error code of the CUDA runtime, 0 if there is none."""
        code = int(runtime.cudaHostRegister(address, len(self), 0))
        if not code:
            self.locked_by, self.address = runtime, address
        return code

    def __del__(self) -> None:
        # Before the mapping goes: the driver would hold on to memory that is no longer this process's.
        if self.locked_by is not None:
            self.locked_by.cudaHostUnregister(self.address)


def pinned(nbytes: int, device: torch.device) -> Tensor:
    """uint8 (nbytes,) of zeros in the host's memory, page-locked for a GPU; the memory goes back with the last view of it.

    Of exactly that size: torch's own allocator rounds page-locked memory up to a power of two, and keeps it. On the CPU, memory that takes
    room once it is written. No copy may be under way when the last view goes. Raises MemoryError where there is too little.
    """
    if not nbytes:
        return torch.zeros(0, dtype=torch.uint8)
    try:
        memory = _Mapping(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"not enough memory for {nbytes / 2**30:.2f} GiB on the host") from error
    found = torch.frombuffer(memory, dtype=torch.uint8)
    if device.type == "cuda":
        cudart: Any = torch.cuda.cudart
        code = memory.lock(cudart(), found.data_ptr())
        if code:
            raise MemoryError(f"{nbytes / 2**30:.2f} GiB of the host's memory cannot be page-locked (CUDA error {code})")
    return found
