"""A paged cache some of whose pages lie in the host's memory and come to the device for as long as a layer attends to them."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.kernels.kv_scaled import KV_LARGEST
from inferometer.model.spec import ModelSpec
from inferometer.nn.cache import PagedCache, zeros
from inferometer.nn.host_buffer import HostBuffer

SLOTS = 3
"""Of the ring: while one is attended to, the next comes and the one before goes back."""

SLOT_BYTES = 256 << 20
"""About what a slot holds: a copy over a fast link takes some 5 ms, so that starting it costs nothing, and what waits is soon there."""


class TieredCache(PagedCache):
    """Pages 0 to resident - 1 lie on the device; the others on the host, page-locked.

    A host page is attended to in a slot: room for `slot_pages` pages of one layer. Behind the pages of all layers lie the slots, in one
    piece of memory for keys and one for values, so that a page in a slot has a number too, counted from the layer's first page: what
    `place` says. One block table thus leads to pages on both sides.

    keys, values: as in PagedCache, of the resident pages. host_keys, host_values: the same of the pages on the host.
    Raises ValueError for 8 bits, whose scales would have to come as well, UserError where the host has too little memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        pages: int,
        resident: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        slot_pages: int,
        slots: int = SLOTS,
    ) -> None:
        if dtype in KV_LARGEST:
            raise ValueError("a cache in 8 bits has all its pages on the device")
        if not 0 <= resident <= pages or slot_pages < 1 or slots < 2:
            raise ValueError(f"{resident} of {pages} pages on the device and {slots} slots of {slot_pages} make no cache")
        self.pages = pages
        self.page_size = page_size
        self.resident = resident
        self.slots = slots
        self.slot_pages = slot_pages
        self.key_scales = self.value_scales = None
        self.layers = spec.layers
        heads = (spec.kv_heads, spec.head_size)
        own = spec.layers * resident
        self._memory = zeros((2, (own + slots * slot_pages) * page_size, *heads), device, dtype)
        self._all_keys, self._all_values = self._memory.unbind(0)
        shape = (spec.layers, resident * page_size, *heads)
        self.keys, self.values = (memory[: own * page_size].view(shape) for memory in (self._all_keys, self._all_values))
        elsewhere = (2, spec.layers, (pages - resident) * page_size, *heads)
        self._buffer = HostBuffer((pages - resident) * self.page_bytes(spec, dtype, page_size), device)
        self.host_keys, self.host_values = self._buffer.tensor.view(dtype).view(elsewhere).unbind(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.keys.nbytes + self.values.nbytes + self.host_keys.nbytes + self.host_values.nbytes

    def close(self) -> None:
        """Lets go of the host's memory. No copy may be under way."""
        self.host_keys, self.host_values = self.host_keys[:0].clone(), self.host_values[:0].clone()
        self._buffer.close()

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, (places, kv_heads, head_size) each, from the layer's first page to the end of the slots."""
        first = layer * self.resident * self.page_size
        return self._all_keys[first:], self._all_values[first:]

    def place(self, slot: int, layer: int) -> int:
        """The number that the slot's first page has in that layer."""
        return (self.layers - layer) * self.resident + slot * self.slot_pages

    def staged(self, slot: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values of pages in a slot, (places, kv_heads, head_size) each."""
        start = self.layers * self.resident + slot * self.slot_pages + first
        places = slice(start * self.page_size, (start + count) * self.page_size)
        return self._all_keys[places], self._all_values[places]

    def home(self, layer: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer's pages on the host, (places, kv_heads, head_size) each, counted from the first of them."""
        places = slice(first * self.page_size, (first + count) * self.page_size)
        return self.host_keys[layer, places], self.host_values[layer, places]


def slot_pages_for(spec: ModelSpec, dtype: torch.dtype, page_size: int, *, longest: int, elsewhere: int) -> int:
    """Pages of a slot. longest: pages of the longest sequence, which must have room. elsewhere: pages on the host."""
    layer_bytes = PagedCache.page_bytes(spec, dtype, page_size) // spec.layers
    return max(1, min(elsewhere, max(longest, SLOT_BYTES // layer_bytes)))


def slots_bytes(spec: ModelSpec, dtype: torch.dtype, page_size: int, slot_pages: int) -> int:
    """What the slots take on the device."""
    return SLOTS * slot_pages * PagedCache.page_bytes(spec, dtype, page_size) // spec.layers
