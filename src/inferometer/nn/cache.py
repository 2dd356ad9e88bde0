"""The paged KV cache: a pool of pages a layer, in which a sequence's tokens lie wherever its pages are."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from inferometer.model.spec import ModelSpec


class PagedCache:
    """Keys and values of all layers in pages of `page_size` tokens; growing a sequence copies nothing.

    keys, values: (layers, places, kv_heads, head_size); the token at position p of a sequence lies at place
    page * page_size + p % page_size of its page number p // page_size. Which page that is, the block table says
    (`nn.batch.CachedRows`).

    The memory is taken at construction; raises torch.OutOfMemoryError on a GPU, MemoryError on the CPU if there is too little. On the
    CPU a page takes memory only once it is first written.
    """

    def __init__(self, spec: ModelSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.pages = pages
        self.page_size = page_size
        shape = (2, spec.layers, pages * page_size, spec.kv_heads, spec.head_size)
        # Zeros, not empty memory: a masked key still meets the softmax's zero weight, and 0 x NaN would be NaN.
        self._memory = torch.zeros(shape, device=device, dtype=dtype) if device.type != "cpu" else _mapped(shape, dtype)
        self.keys, self.values = self._memory.unbind(0)

    @staticmethod
    def bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
        """Bytes that one token of context takes over all layers."""
        return 2 * spec.layers * spec.kv_size * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self._memory.nbytes


def _mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that the system provides page by page as they are written; torch would write all of them at once."""
    count = 1
    for size in shape:
        count *= size
    if not count:
        return torch.zeros(shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"not enough memory for a KV cache of {count * dtype.itemsize / 2**30:.2f} GiB") from error
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
