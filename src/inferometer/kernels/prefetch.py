"""Fetching ahead of need."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def prefetch(addresses: Any) -> Any:
    """Brings the cache lines of these addresses into the L2 cache, and waits for nothing."""
    tl.inline_asm_elementwise(
        "{prefetch.global.L2 [$1]; mov.u32 $0, 0;}", "=r,l", [addresses.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@kernel()
def prefetch_spans(addresses: Any, sizes: Any) -> Any:
    """Brings so many bytes from each of these addresses on into the L2 cache, and waits for nothing: from Hopper on.

    Both multiples of 16; nothing comes of a size of zero. As many as the program has threads: of fewer, several threads would each ask
    for the same.
    """
    tl.inline_asm_elementwise(
        "{.reg .pred p; setp.ne.u32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;}",
        "=r,l,r",
        [addresses.to(tl.int64), sizes.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@kernel()
def prefetch_run(first: Any, size: Any, threads: constexpr) -> None:
    """`size` bytes from `first` on, both multiples of 16."""
    each = tl.cdiv(size, threads * 16) * 16
    begin = tl.arange(0, threads) * each
    prefetch_spans(first.to(tl.int64) + begin, tl.maximum(tl.minimum(size - begin, each), 0))


@kernel()
def prefetch_lines(first: Any, lines: Any, stride: Any, size: Any, program: Any, programs: Any, threads: constexpr) -> None:
    """This program's share of `lines` spans of `size` bytes, the next of which begins `stride` bytes behind each."""
    share = tl.cdiv(lines, programs)
    lane = tl.arange(0, threads)
    for base in range(0, share, threads):
        line = program * share + base + lane
        real = (base + lane < share) & (line < lines)
        prefetch_spans(first.to(tl.int64) + line.to(tl.int64) * stride, tl.where(real, size, 0))
