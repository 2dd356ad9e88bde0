"""Which keys of a context a program of decode attention has, and how it asks for the first of them early."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def come_ahead(
    keys: Any, values: Any, entries: Any, start: Any, stop: Any, head: Any, kv_heads: constexpr, head_size: constexpr,
    page_size: constexpr, block: constexpr, stages: constexpr,
) -> None:  # fmt: skip
    """Brings the first keys and values into the L2 cache while the launch ahead still runs: none but the newest is written by it."""
    line: tl.constexpr = 1024 // keys.dtype.element_ty.primitive_bitwidth
    # A power of two that covers the head; what lies behind its end is its last element again.
    lines: tl.constexpr = 1 if head_size <= line else (2 if head_size <= 2 * line else (4 if head_size <= 4 * line else 8))
    part = tl.minimum(tl.arange(0, lines) * line, head_size - 1)
    for stage in tl.static_range(stages):
        position = start + stage * block + tl.arange(0, block)
        page = tl.load(entries + position // page_size, mask=position < stop, other=0).to(tl.int64)
        at = (page * page_size + position % page_size) * (kv_heads * head_size) + head * head_size
        prefetch(keys + at[:, None] + part[None, :])
        prefetch(values + at[:, None] + part[None, :])


@kernel()
def span_of(context: Any, parts: Any, block: constexpr, least: constexpr) -> Any:
    """Keys of each part of a context, a multiple of `block`, and how many parts there are, at least one: no more than `parts`, nor than
    `least` keys each are worth."""
    used = tl.maximum(tl.minimum(parts, (context + least - 1) // least), 1)
    span = tl.maximum((context + used * block - 1) // (used * block), 1) * block
    return span, tl.maximum((context + span - 1) // span, 1)
