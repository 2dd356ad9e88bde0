"""The paged KV cache: a pool of pages a layer, in which a sequence's tokens lie wherever its pages are."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from inferometer.kernels.kv_scaled import KV_LARGEST, PageScales
from inferometer.model.byte_size import gib
from inferometer.model.formats import kv_scale_bytes_per_page
from inferometer.model.spec import ModelSpec


class PagedCache:
    """Keys and values of all layers in pages of `page_size` tokens; growing a sequence copies nothing.

    keys, values: (layers, places, kv_heads, head_size); the token at position p of a sequence lies at place
    page * page_size + p % page_size of its page number p // page_size. Which page that is, the block table says
    (`nn.batch.CachedRows`).
    key_scales, value_scales: float32 (layers, pages, kv_heads) of a cache in 8 bits (`kernels/kv_scaled.py`), else None.

    dtype: torch.int8 and torch.float8_e4m3fn have scales.

    The memory is taken at construction; raises torch.OutOfMemoryError on a GPU, MemoryError on the CPU if there is too little. On the
    CPU a page takes memory only once it is first written.
    """

    def __init__(self, spec: ModelSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.pages = pages
        self.page_size = page_size
        shape = (2, spec.layers, pages * page_size, spec.kv_heads, spec.head_size)
        # Zeros, not empty memory: a masked key still meets the softmax's zero weight, and 0 x NaN would be NaN.
        self._memory = zeros(shape, device, dtype)
        self.keys, self.values = self._memory.unbind(0)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if dtype in KV_LARGEST:
            scales = torch.zeros(2, spec.layers, pages, spec.kv_heads, device=device)
            self.key_scales, self.value_scales = scales.unbind(0)

    @classmethod
    def of_one_layer(cls, spec: ModelSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> PagedCache:
        """One whose layers all lie in the same memory, that of one: for sweeps whose tokens nobody wants."""
        cache = cls(replace(spec, layers=1), pages, page_size, device, dtype)
        every = (spec.layers, -1, -1, -1)
        cache.keys, cache.values = cache.keys.expand(every), cache.values.expand(every)
        if cache.key_scales is not None and cache.value_scales is not None:
            cache.key_scales, cache.value_scales = cache.key_scales.expand(every[:3]), cache.value_scales.expand(every[:3])
        return cache

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, (places, kv_heads, head_size) each: what the block table's pages lie in."""
        return self.keys[layer], self.values[layer]

    @staticmethod
    def bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
        """Bytes that one token of context takes over all layers, without scales."""
        return 2 * spec.layers * spec.kv_size * dtype.itemsize

    @staticmethod
    def page_bytes(spec: ModelSpec, dtype: torch.dtype, page_size: int) -> int:
        """Bytes of a page over all layers, with its scales."""
        scales = kv_scale_bytes_per_page(spec, 1) if dtype in KV_LARGEST else 0
        return page_size * PagedCache.bytes_per_token(spec, dtype) + scales

    def scales(self, layer: int) -> PageScales | None:
        """Of a layer's pages in 8 bits; None for others."""
        if self.key_scales is None or self.value_scales is None:
            return None
        return PageScales(self.key_scales[layer], self.value_scales[layer])

    def held(self, memory: Literal["keys", "values"], layer: int, pages: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """What lies in pages of a layer, widened to `dtype` where it is in 8 bits: (pages, page_size, kv_heads, head_size).

        pages: int64 (pages,), or a slice of page numbers.
        """
        keys, values = self.layer(layer)
        numbers, scales = (keys, self.key_scales) if memory == "keys" else (values, self.value_scales)
        paged = numbers.view(-1, self.page_size, *numbers.shape[1:])
        found = paged[pages] if isinstance(pages, slice) else paged.index_select(0, pages)
        return found if scales is None else (found.float() * scales[layer, pages][:, None, :, None]).to(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, without scales."""
        return self._memory.nbytes


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on the CPU the system provides them page by page as they are written, torch would write all of them at once.

    Raises MemoryError, or on a GPU torch.OutOfMemoryError, where there is no room.
    """
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    count = 1
    for size in shape:
        count *= size
    if not count:
        return torch.zeros(shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"not enough memory for a KV cache of {gib(count * dtype.itemsize)}") from error
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
