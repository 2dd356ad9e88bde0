"""Native backends over a tiny model, and the batch that they run."""

from __future__ import annotations

from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.engine.llm import LLM
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.schedule.admission import Admission, admission
from inferometer.schedule.sampling import SamplingParams

ROWS, LENGTH, NEW = 6, 13, 21
PARAMS = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
PROMPTS = random_prompts(0, ROWS, LENGTH, 300)
ORDERS = {
    "none": None,
    "continuous": admission("continuous"),
    "zigzag": admission("zigzag", 2),
    "zigzag, two groups": admission("zigzag", 2, 2),
    "diagonal": admission("diagonal", 2),
    "diagonal, two groups": admission("diagonal", 2, 2),
    "row": admission("row", 4),
}


def backend(llm: LLM, order: Admission | None = None, *, sweep_tokens: int = 8192, lookahead: int = 0) -> NativeBackend:
    """With its pages taken."""
    made = NativeBackend(llm, order, sweep_tokens=sweep_tokens, lookahead=lookahead)
    made.prepare(ROWS, LENGTH + NEW)
    return made


def expected(llm: LLM) -> list[list[int]]:
    """The tokens that each prompt gets alone."""
    return [llm.generate([prompt], PARAMS)[0].token_ids for prompt in PROMPTS]


def pages(tokens: int) -> int:
    """That so many take."""
    return -(-tokens // PAGE_SIZE)


class Cramped:
    """An LLM on a device with room for so many pages."""

    def __init__(self, llm: LLM, room: int) -> None:
        self._llm = llm
        self._room = room

    def __getattr__(self, name: str) -> object:
        return getattr(self._llm, name)

    def room(self, *, seats: int, sweep_tokens: int) -> int:
        return self._room
