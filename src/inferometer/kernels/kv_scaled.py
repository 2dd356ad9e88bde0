"""Keys and values in 8 bits: a scale for each head of each page, which grows with what the page takes in."""

from __future__ import annotations

import torch
from torch import Tensor

KV_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def scaled_write(values: Tensor, memory: Tensor, scales: Tensor, places: Tensor, page_size: int) -> None:
    """Writes keys, or values, of a sweep's tokens into a layer's pages. The reference, in torch's operations.

    values: (tokens, kv_heads, head_size). memory: int8 or float8_e4m3fn (places, kv_heads, head_size); what lies there means
    scale * number. scales: float32 (pages, kv_heads). places: int64 (tokens,), negative for padding, which is not written.

    A page to whose first place something is written begins anew: what it held counts no longer. A page's scale is then the larger of
    what it was (0 where it begins) and what brings the largest new number to 127 (int8) or to at most 448 (e4m3). For e4m3 it is the next
    power of two, so that rounding again loses nothing but the smallest numbers. What a page holds already is rounded to its new scale.
    No two sequences write to one page in a sweep.
    """
    kept = places >= 0
    if not bool(kept.all()):
        values, places = values[kept], places[kept]
    if not len(places):
        return
    largest = KV_LARGEST[memory.dtype]
    pages, which = torch.unique(places // page_size, return_inverse=True)
    begins = torch.zeros(len(pages), dtype=torch.bool, device=places.device)
    begins[which[places % page_size == 0]] = True
    peaks = torch.zeros(len(pages), values.shape[1], device=values.device)
    peaks.scatter_reduce_(0, which[:, None].expand(-1, values.shape[1]), values.float().abs().amax(2), "amax")
    needed = peaks / largest
    if memory.dtype != torch.int8:
        needed = power_of_two(needed)
    old = scales[pages].masked_fill(begins[:, None], 0.0)
    new = torch.maximum(old, needed)
    scales[pages] = new
    paged = memory.view(-1, page_size, *memory.shape[1:])
    grown = ((old != new) & (old > 0)).any(1)
    if bool(grown.any()):
        held = paged[pages[grown]].float() * old[grown][:, None, :, None]
        paged[pages[grown]] = _rounded(held, new[grown][:, None, :, None], memory.dtype)
    memory[places] = _rounded(values.float(), new[which][:, :, None], memory.dtype)


def power_of_two(scale: Tensor) -> Tensor:
    """The least power of two that is not below a float32 scale; 0 for 0."""
    mantissa, exponent = torch.frexp(scale)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    return torch.ldexp((scale > 0).to(scale.dtype), exponent)


def _rounded(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    largest = KV_LARGEST[dtype]
    levels = (values / scale.masked_fill(scale == 0, 1.0)).clamp(-largest, largest)
    return levels.round().to(torch.int8) if dtype == torch.int8 else levels.to(dtype)
