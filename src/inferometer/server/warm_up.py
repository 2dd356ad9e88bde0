"""Before a server is ready: what requests will run is run once, so that none of them waits for something to be made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

if TYPE_CHECKING:
    from inferometer.engine.engine import Engine
    from inferometer.engine.llm import LLM

LONGEST: Final = 2049
"""The longest prompt that is run for the sake of graphs. Those for longer contexts are recorded when they are first needed, as a
prompt of the length that needs them takes longer than recording does."""

REPEATS: Final = 3
"""Sweeps of one kind: the first compiles what it needs, the second is recorded, the third is a replay."""


def warm_up(engine: Engine, total_tokens: int) -> None:
    """Runs requests of every kind and, where sweeps become graphs, sweeps of every size. total_tokens: the most of any request."""
    from inferometer.kernels.support import usable

    run_every_kind(engine)
    if engine.graphs and usable(engine.model.device):
        Recording(engine, total_tokens).run()
    engine.clear()


def settle(llm: LLM) -> None:
    """What was made so far lives as long as the process, on every rank: no full collection in the middle of a stream looks through it.

    That takes a microsecond an object, a third of a second for what torch, transformers and a model come to.
    """
    llm.everywhere(_out_of_sight)


def _out_of_sight(llm: LLM) -> None:
    del llm
    gc.collect()
    gc.freeze()


def run_every_kind(engine: Engine) -> None:
    """Greedy, sampled and scored requests, one after the other."""
    kinds = (
        SamplingParams(max_new_tokens=3, ignore_eos=True),
        SamplingParams(max_new_tokens=3, do_sample=True, temperature=0.9, top_k=10, top_p=0.9, typical_p=0.9, seed=0, ignore_eos=True),
        SamplingParams(max_new_tokens=3, prompt_logprobs=True, top_logprobs=2, repetition_penalty=1.1, ignore_eos=True),
    )
    limit = engine.model.spec.context_limit
    prompt = (0,) * max(1, min(8, (limit or 16) - 4))
    for number, params in enumerate(kinds):
        if limit is not None and len(prompt) + 3 > limit:
            params = SamplingParams(max_new_tokens=1)
        engine.add(Request(number, prompt, params, number))
        while engine.has_work:
            engine.step()


class Recording:
    """Lets one engine run sweeps of all sizes that it makes graphs for: decode sweeps, and decode with some of a prompt beside it.

    A burst of requests would otherwise record them one after the other, each while all wait.
    """

    def __init__(self, engine: Engine, total_tokens: int) -> None:
        self._engine = engine
        limit = engine.model.spec.context_limit
        # Of which a sequence may use one more: its last token is never run.
        self._longest = min(total_tokens, engine.pages * engine.page_size, limit or total_tokens)
        self._next = 0

    def run(self) -> None:
        """Runs them all. Leaves requests and a prefix cache behind, for `Engine.clear`."""
        for context in self._contexts():
            self._alone((0,) * context)  # from here on its beginning is in the prefix cache, and it enters together with short ones
            for rows in self._row_counts():
                self._decode(rows, context, sampled=False)
                if context == 1:  # how tokens are chosen does not depend on the context
                    self._decode(rows, context, sampled=True)
            for rows in (0, *self._mixed_row_counts()):
                self._mixed(rows, context)

    def _contexts(self) -> Iterator[int]:
        """For each class of context lengths the shortest prompt that makes a sweep one of it."""
        from inferometer.engine.sweep_graphs import SHORTEST_CONTEXT

        context, longest = 1, SHORTEST_CONTEXT
        while context <= LONGEST and context + REPEATS + 1 <= self._longest:
            yield context
            context, longest = longest + 1, longest * 4

    def _row_counts(self) -> list[int]:
        """Sequences in a decode sweep: the most of each size that there are graphs for."""
        from inferometer.engine.sweep_graphs import rows_bucket

        return sorted({min(rows_bucket(rows), self._engine.seats) for rows in range(1, self._engine.seats + 1)})

    def _mixed_row_counts(self) -> list[int]:
        """As `_row_counts`, for sweeps with prompts, which need a seat as well."""
        counts, rows = [], 8
        while rows < 2 * (self._engine.seats - 1):
            counts.append(min(rows, self._engine.seats - 1))
            rows *= 2
        return counts

    def _fits(self, rows: int, context: int, new: int) -> bool:
        """Whether there are pages for one prompt of `context` tokens and the rest of one token, each with so many new ones, at a time."""
        size = self._engine.page_size
        return -(-(context + new) // size) + (rows - 1) * -(-(1 + new) // size) <= self._engine.pages

    def _decode(self, rows: int, context: int, *, sampled: bool) -> None:
        if not self._fits(rows, context, REPEATS + 1):
            return
        params = SamplingParams(max_new_tokens=REPEATS + 1, do_sample=sampled, ignore_eos=True)
        self._add((0,) * context, params)
        for _ in range(rows - 1):
            self._add((0,), params)
        self._finish()

    def _mixed(self, rows: int, context: int) -> None:
        """Prompts of each size that is recorded while `rows` sequences decode, and of the most tokens that there can be."""
        from inferometer.engine.sweep_graphs import FEW_TOKENS, PROMPT_TOKENS

        engine = self._engine
        most = min(engine.most_prompt_tokens(rows), self._longest - 1)
        sizes = sorted({min(size, most) for size in (*PROMPT_TOKENS[: PROMPT_TOKENS.index(FEW_TOKENS) + 1], most) if most > 0})
        life = min(4 * REPEATS * len(sizes), self._longest - context)
        if not self._fits(rows + 1, max(context, most), life):
            return
        params = SamplingParams(max_new_tokens=max(life, 1), ignore_eos=True)
        if rows:
            self._add((0,) * context, params)
        for _ in range(rows - 1):
            self._add((0,), params)
        for tokens in sizes:
            for _ in range(REPEATS):
                engine.step()
                # Of a token of its own, so that the prefix cache has none of it.
                self._add((self._next % engine.model.spec.vocabulary,) * tokens, SamplingParams(max_new_tokens=1, ignore_eos=True))
                engine.step()
        self._finish()

    def _alone(self, prompt: tuple[int, ...]) -> None:
        self._add(prompt, SamplingParams(max_new_tokens=1, ignore_eos=True))
        self._finish()

    def _add(self, prompt: tuple[int, ...], params: SamplingParams) -> None:
        self._next += 1
        self._engine.add(Request(self._next, prompt, params, self._next))

    def _finish(self) -> None:
        while self._engine.has_work:
            self._engine.step()
