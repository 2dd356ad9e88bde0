"""Words by which the programs of ranks tell each other that what they have written is there."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def raised(boxes: Any, at: Any, rank: Any, now: Any, size: constexpr, strict: constexpr) -> None:
    """Sets a word in the memory of every other rank, behind all that the program has written. at: which word; boxes: their addresses."""
    if strict:
        tl.inline_asm_elementwise("fence.acq_rel.sys; mov.u32 $0, 0;", "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1)
    # One thread tells for all.
    tl.debug_barrier()
    for peer in tl.static_range(size):
        if peer != rank:
            tl.atomic_xchg(tl.load(boxes + peer).to(tl.pointer_type(tl.int32)) + at, now, sem="release", scope="sys")


@kernel()
def until(places: Any, real: Any, now: Any, strict: constexpr) -> None:
    """Waits for all of these words. strict: nothing that was written before they were is then read as it was."""
    missing = behind(places, real, now)
    while missing != 0:
        missing = behind(places, real, now)
    if strict:
        tl.inline_asm_elementwise("fence.acq_rel.sys; mov.u32 $0, 0;", "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1)
    # No thread reads what was copied before one has seen that it is there.
    tl.debug_barrier()


@kernel()
def announced(boxes: Any, at: Any, rank: Any, now: Any, size: constexpr, strict: constexpr) -> None:
    """As `raised`, but one thread waits for what all have written, and tells the rank behind this one first.

    A fence that every thread passes is waited for by each of them. What a thread wrote before it met the others is known with what the one
    that goes on alone makes known (PTX, causality order).
    """
    tl.debug_barrier()
    if strict:
        tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; @p fence.acq_rel.sys; mov.u32 $0, 0;}",
            "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    for step in tl.static_range(1, size):
        peer = (rank + step) % size
        place = tl.load(boxes + peer).to(tl.pointer_type(tl.int32)) + at
        if strict:
            tl.inline_asm_elementwise(
                "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; @p st.relaxed.sys.global.u32 [$1], $2; "
                "mov.u32 $0, 0;}",
                "=r,l,r", [place.to(tl.int64), now], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.atomic_xchg(place, now, sem="release", scope="sys")


@kernel()
def awaited(places: Any, real: Any, now: Any, strict: constexpr) -> None:
    """As `until`, but one thread makes sure that nothing is read as it was."""
    missing = behind(places, real, now)
    while missing != 0:
        missing = behind(places, real, now)
    if strict:
        tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; @p fence.acq_rel.sys; mov.u32 $0, 0;}",
            "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    tl.debug_barrier()


@kernel()
def behind(places: Any, real: Any, now: Any) -> Any:
    """Whether one of the words has not come."""
    return tl.max((real & (tl.load(places, mask=real, other=0, volatile=True) - now < 0)).to(tl.int32))
