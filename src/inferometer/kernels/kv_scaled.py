"""Keys and values in 8 bits: a scale for each head of each page, which grows with what the page takes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from inferometer.kernels.eight_bit_floats import float_bits, wide_float
from inferometer.kernels.support import constexpr, early, kernel, tl, usable, wait_for_inputs
from inferometer.kernels.support import power_of_two as padded

KV_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
FEW_TOKENS = 1024
"""Up to which a program looks at one token of a sweep. Beyond, most tokens are not the first of their page, and one looks at many."""


@dataclass(frozen=True, slots=True)
class PageScales:
    """What numbers of a layer's pages in 8 bits stand for: keys, values float32 (pages, kv_heads), contiguous."""

    keys: Tensor
    values: Tensor


def scaled_write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scales: PageScales, places: Tensor, page_size: int) -> None:
    """Writes keys and values of a sweep's tokens into a layer's pages of 8 bits, on a GPU in one launch.

    key, value: (tokens, kv_heads, head_size), the last dimension contiguous. keys, values: int8 or float8_e4m3fn (places, kv_heads,
    head_size), contiguous; what lies there means scale * number. places: int64 (tokens,), negative for padding, which is not written.
    Tokens of one page are neighbours in the sweep, in their order.

    A page to whose first place something is written begins anew: what it held counts no longer. A page's scale is then the larger of
    what it was (0 where it begins) and what brings the largest new number to 127 (int8) or to at most 448 (e4m3). For e4m3 it is the next
    power of two, so that rounding again loses nothing but the smallest numbers. What a page holds already is rounded to its new scale.
    No two sequences write to one page in a sweep.
    """
    if usable(keys.device):
        scaled_write_triton(key, value, keys, values, scales, places, page_size)
    else:
        scaled_write_torch(key, keys, scales.keys, places, page_size)
        scaled_write_torch(value, values, scales.values, places, page_size)


def wide_rows(memory: Tensor, scales: Tensor | None, places: Tensor, page_size: int, dtype: torch.dtype) -> Tensor:
    """What lies at these places of a layer's keys or values: (places, kv_heads, head_size), in `dtype` where it has scales."""
    if scales is None:
        return memory.index_select(0, places)
    rows = memory.view(torch.uint8).index_select(0, places).view(memory.dtype).float()
    return (rows * scales.index_select(0, places // page_size)[:, :, None]).to(dtype)


def scaled_write_torch(values: Tensor, memory: Tensor, scales: Tensor, places: Tensor, page_size: int) -> None:
    """The reference, of keys or of values. scales: float32 (pages, kv_heads)."""
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


def scaled_write_triton(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scales: PageScales, places: Tensor, page_size: int
) -> None:
    """The kernel. What is no number, or infinite, gives its page's scale NaN."""
    tokens, kv_heads, head_size = key.shape
    if tokens == 0:
        return
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert scales.keys.is_contiguous()
    assert scales.values.is_contiguous()
    assert key.stride(2) == value.stride(2) == 1
    window = 1 if tokens <= FEW_TOKENS else page_size
    whole = keys.dtype == torch.int8
    _write.launch(
        (-(-tokens // window), kv_heads, 2), key, value, bytes_of(keys), bytes_of(values), scales.keys, scales.values, places,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1), tokens, KV_LARGEST[keys.dtype], kv_heads=kv_heads,
        head_size=head_size, width=padded(head_size), page_size=page_size, slots=padded(page_size), window=window, whole=whole,
        num_warps=1 if window == 1 else 4, **early(keys.device),
    )  # fmt: skip


def kind_of(memory: Tensor) -> Literal["int8", "fp8"] | None:
    """How kernels read pages of this type; None where they have no scales."""
    return "int8" if memory.dtype == torch.int8 else "fp8" if memory.dtype == torch.float8_e4m3fn else None


def bytes_of(memory: Tensor) -> Tensor:
    """Pages as kernels take them: e4m3 as bytes, which every GPU reads."""
    return memory.view(torch.uint8) if memory.dtype == torch.float8_e4m3fn else memory


@kernel("tokens", "places", "key_token", "value_token")
def _write(
    key: Any, value: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, places: Any, key_token: Any, key_head: Any,
    value_token: Any, value_head: Any, tokens: Any, largest: Any, kv_heads: constexpr, head_size: constexpr, width: constexpr,
    page_size: constexpr, slots: constexpr, window: constexpr, whole: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One head of keys, or of values, of the pages whose first token in this sweep is among `window` tokens."""
    wait_for_inputs(early)
    first = tl.program_id(0) * window
    head = tl.program_id(1)
    for token in range(first, tl.minimum(first + window, tokens)):
        place = tl.load(places + token)
        before = tl.load(places + token - 1, mask=token > 0, other=-1)
        # Of neighbouring tokens of one page the first writes all.
        if (place >= 0) & ((before < 0) | (before // page_size != place // page_size)):
            after = tl.load(places + token + 1, mask=token + 1 < tokens, other=-1)
            alone = (after < 0) | (after // page_size != place // page_size)
            if tl.program_id(2) == 0:
                write(
                    key + head * key_head, key_token, keys, key_scales, places, token, tokens, place, alone, head, largest, kv_heads,
                    head_size, width, page_size, slots, whole,
                )  # fmt: skip
            else:
                write(
                    value + head * value_head, value_token, values, value_scales, places, token, tokens, place, alone, head, largest,
                    kv_heads, head_size, width, page_size, slots, whole,
                )  # fmt: skip


@kernel()
def write(
    source: Any, source_token: Any, memory: Any, scales: Any, places: Any, token: Any, tokens: Any, place: Any, alone: Any, head: Any,
    largest: Any, kv_heads: constexpr, head_size: constexpr, width: constexpr, page_size: constexpr, slots: constexpr, whole: constexpr,
) -> None:  # fmt: skip
    """A head of all that comes to the page of `place` in this sweep, from `token` on: that one alone, as where rows decode, or several."""
    if alone:
        write_one(source, source_token, memory, scales, token, place, head, largest, kv_heads, head_size, width, page_size, slots, whole)
    else:
        write_page(
            source, source_token, memory, scales, places, token, tokens, place, head, largest, kv_heads, head_size, width, page_size, slots,
            whole,
        )  # fmt: skip


@kernel()
def write_one(
    source: Any, source_token: Any, memory: Any, scales: Any, token: Any, place: Any, head: Any, largest: Any, kv_heads: constexpr,
    head_size: constexpr, width: constexpr, page_size: constexpr, slots: constexpr, whole: constexpr,
) -> None:  # fmt: skip
    """A head of one token, which touches no other number of its page unless the scale grows."""
    page = place // page_size
    opening = (place % page_size).to(tl.int32)
    d = tl.arange(0, width)
    row = (token + tl.zeros_like(d)).to(tl.int64)
    new = tl.load(source + row * source_token + d, mask=d < head_size, other=0).to(tl.float32)
    old, scale = grown(scales + page * kv_heads + head, tl.max(new.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), opening, largest, whole)
    divisor = tl.where(scale == 0, 1.0, scale)
    if (scale != old) & (old > 0):
        slot = tl.arange(0, slots)
        at = memory + ((page * page_size + slot) * kv_heads + head)[:, None] * head_size + d[None, :]
        round_again(at, old, divisor, (slot < opening)[:, None] & (d < head_size)[None, :], largest, whole)
    tl.store(memory + (place * kv_heads + head) * head_size + d, eight_bits(new / divisor, largest, whole), mask=d < head_size)


@kernel()
def write_page(
    source: Any, source_token: Any, memory: Any, scales: Any, places: Any, token: Any, tokens: Any, place: Any, head: Any, largest: Any,
    kv_heads: constexpr, head_size: constexpr, width: constexpr, page_size: constexpr, slots: constexpr, whole: constexpr,
) -> None:  # fmt: skip
    """A head of all that comes to the page of `place` in this sweep, from `token` on."""
    page = place // page_size
    opening = (place % page_size).to(tl.int32)
    slot = tl.arange(0, slots)
    d = tl.arange(0, width)
    row = token + slot - opening
    there = (slot >= opening) & (slot < page_size) & (row < tokens)
    ours = tl.load(places + row, mask=there, other=-1) == page * page_size + slot
    real = ours[:, None] & (d < head_size)[None, :]
    new = tl.load(source + row.to(tl.int64)[:, None] * source_token + d[None, :], mask=real, other=0).to(tl.float32)
    top = tl.max(tl.max(new.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1), 0)
    old, scale = grown(scales + page * kv_heads + head, top, opening, largest, whole)
    divisor = tl.where(scale == 0, 1.0, scale)
    at = memory + ((page * page_size + slot) * kv_heads + head)[:, None] * head_size + d[None, :]
    if (scale != old) & (old > 0):
        round_again(at, old, divisor, (slot < opening)[:, None] & (d < head_size)[None, :], largest, whole)
    tl.store(at, eight_bits(new / divisor, largest, whole), mask=real)


@kernel()
def grown(at_scale: Any, top: Any, opening: Any, largest: Any, whole: constexpr) -> Any:
    """A page's scale before and after it takes in numbers of which the largest has the bits `top`; the new one is stored.

    By bits, as those of what is no number are larger than all others'."""
    needed = tl.div_rn(top.to(tl.float32, bitcast=True), largest)
    if not whole:
        needed = ((needed.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    needed = tl.where(top < 0x7F800000, needed, float("nan"))
    old = tl.where(opening == 0, 0.0, tl.load(at_scale))
    # A scale that is no number stays none.
    scale = tl.where((needed > old) | (needed != needed), needed, old)
    tl.store(at_scale, scale)
    return old, scale


@kernel()
def round_again(at: Any, old: Any, new: Any, earlier: Any, largest: Any, whole: constexpr) -> None:
    """What a page holds, from its old scale to its new one."""
    held = tl.load(at, mask=earlier, other=0)
    held = held.to(tl.float32) if whole else wide_float(held.to(tl.int32) << 24)
    tl.store(at, eight_bits(held * old / new, largest, whole), mask=earlier)


@kernel()
def eight_bits(value: Any, largest: Any, whole: constexpr) -> Any:
    """float32 -> int8, or the byte of e4m3: the nearest number, of two the even one."""
    value = tl.minimum(tl.maximum(value, -largest), largest)
    # Added to 1.5 * 2^23 a number is rounded to a whole one, which is the sum's lowest byte.
    return (value + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8) if whole else float_bits(value).to(tl.uint8)


@kernel()
def widened(numbers: Any, kind: constexpr, assembled: constexpr) -> Any:
    """Keys or values as they lie in pages -> float32, before their scales. kind: None where they are numbers of the model's type.

    assembled: by the conversion from e4m3 that GPUs from 8.9 on have.
    """
    if kind == "fp8":
        if assembled:
            code: tl.constexpr = """{
                .reg .b16 low, high, h0, h1, h2, h3;
                .reg .b32 pair0, pair1;
                mov.b32 {low, high}, $4;
                cvt.rn.f16x2.e4m3x2 pair0, low;
                cvt.rn.f16x2.e4m3x2 pair1, high;
                mov.b32 {h0, h1}, pair0;
                mov.b32 {h2, h3}, pair1;
                cvt.f32.f16 $0, h0;
                cvt.f32.f16 $1, h1;
                cvt.f32.f16 $2, h2;
                cvt.f32.f16 $3, h3;
            }"""
            numbers = tl.inline_asm_elementwise(code, "=f,=f,=f,=f,r", [numbers], dtype=tl.float32, is_pure=True, pack=4)
        else:
            numbers = wide_float(numbers.to(tl.int32) << 24)
    return numbers.to(tl.float32)


@kernel()
def scales_of(scales: Any, page: Any, head: Any, seen: Any, kv_heads: constexpr, kind: constexpr) -> Any:
    """The scale of a head in each of these pages, where `seen`; 1 where pages have none."""
    found = 1.0
    if kind is not None:
        found = tl.load(scales + page.to(tl.int64) * kv_heads + head, mask=seen, other=0)
    return found
