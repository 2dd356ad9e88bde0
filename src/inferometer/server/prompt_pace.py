"""How much of a prompt runs beside sequences that decode: so much that none of them waits long, measured before anybody is let in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inferometer.engine.sizes import PAGE_SIZE
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

if TYPE_CHECKING:
    from inferometer.engine.engine import Engine
    from inferometer.engine.llm import LLM

MOST_STEPS: Final = 3.0
"""So many times as long as a step of one sequence alone it may take with a piece of a prompt beside it. More, and readers see streams stop;
less, and a prompt reads the weights more often than it computes. Measured without a context: at the end of a long prompt a piece takes
longer."""

SIZES: Final = (16, 32, 64, 128, 256)
"""Tokens of a piece that are tried, whole pages. The least runs whatever it takes."""

REPEATS: Final = 3
"""Sweeps of one kind at most, of which the quickest counts: what else a machine does makes others longer."""

_CONTEXT = 8


def prompt_tokens(llm: LLM, most: int) -> int:
    """The tokens of prompts that a sweep may have beside sequences that decode, no more than `most`. Raises what an engine raises.

    Takes some twenty steps of one sequence.
    """
    sizes = [size for size in SIZES if size < most] + [most]
    limit = llm.spec.context_limit
    if limit is not None:
        sizes = [size for size in sizes if size < limit]
    new = REPEATS * (len(sizes) + 1)
    if not sizes or (limit is not None and _CONTEXT + new > limit):
        return most
    pages = -(-(_CONTEXT + new) // PAGE_SIZE) + -(-(sizes[-1] + 1) // PAGE_SIZE)
    engine = llm.make_engine(pages=pages, seats=2, sweep_tokens=sizes[-1] + 1, prefix_caching=False)
    try:
        return widest(_Pieces(engine, new).seconds, sizes)
    finally:
        engine.close()


def widest(seconds: Callable[[int], float], sizes: list[int]) -> int:
    """The largest of ascending `sizes` up to which sweeps take no more than MOST_STEPS of one without a prompt, at least the first.

    seconds: of one sweep with so many tokens of a prompt.
    """
    allowed = MOST_STEPS * min(seconds(0) for _ in range(REPEATS))
    found = sizes[0]
    for size in sizes[1:]:
        if not any(seconds(size) <= allowed for _ in range(REPEATS)):
            break
        found = size
    return found


class _Pieces:
    """One sequence that decodes, and prompts of one piece each beside it."""

    def __init__(self, engine: Engine, new: int) -> None:
        self._engine = engine
        engine.add(Request(0, (0,) * _CONTEXT, SamplingParams(max_new_tokens=new + 1, ignore_eos=True), 0))
        engine.step()
        self._next = 1

    def seconds(self, tokens: int) -> float:
        if tokens:
            self._engine.add(Request(self._next, (0,) * tokens, SamplingParams(max_new_tokens=1, ignore_eos=True), 0))
            self._next += 1
        begin = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - begin
