"""Two passes that run at once read nothing that the other one writes, and launches of theirs count in different places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.engine import Engine
from inferometer.engine.prompts_beside import ONE_PASS, PromptsBeside
from inferometer.engine.sweep_graphs import SweepGraphs
from inferometer.kernels.arrivals import arrivals, counted_apart
from inferometer.model.description import describe
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE
from inferometer.nn.residency import AllResident
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Share

CPU = torch.device("cpu")
PAGE, PAGES, SEATS = 4, 60, 8

Used = tuple[set[tuple[str, int]], set[tuple[str, int]]]
"""What a pass reads and what it writes: places of keys, rows of the block table, and seats of tokens."""


class Noted:
    """A model without numbers, that tells what a real one reads and writes."""

    def __init__(self) -> None:
        self.spec = self.local = describe("opt-125m", config_only=True).spec
        self.collective, self.residency, self.compiled = ALONE, AllResident(), None
        self.device, self.dtype = CPU, torch.float32
        self.passes: list[Used] = []
        self.embedding = SimpleNamespace(token=SimpleNamespace(weight=torch.zeros(self.spec.vocabulary, 1)))

    def sweep(self, batch: RaggedBatch, cache: PagedCache) -> Tensor:
        rows = batch.rows
        assert rows is not None
        reads: set[tuple[str, int]] = set()
        writes = {("key", place) for place in rows.places.tolist() if place >= 0}
        if rows.entries is not None:
            rows.entries.write()
            writes |= {("row", seat) for seat in rows.entries.seats.tolist() if seat < SEATS}
        reads |= {("token", -1 - token) for token in batch.token_ids.tolist() if -1 - SEATS < token < 0}
        for seat, context in zip(rows.seats.tolist(), rows.contexts.tolist(), strict=True):
            if context:
                pages = rows.table[seat][: -(-context // PAGE)].tolist()
                reads |= {("row", seat)} | {("key", pages[at // PAGE] * PAGE + at % PAGE) for at in range(context)}
        self.passes.append((reads, writes))
        return torch.zeros(batch.token_ids.numel(), 1)

    def unnormed(self, batch: RaggedBatch, cache: PagedCache) -> tuple[Tensor, None]:
        return self.sweep(batch, cache), None

    def logits_room(self, rows: int) -> Tensor:
        return torch.empty(rows, 1)

    def choose(self, hidden: Tensor, places: Any, room: Tensor | None = None, norm: None = None) -> None:
        places.write(torch.full((hidden.shape[0],), 7), torch.zeros(hidden.shape[0]))
        if places.seats is not None:
            self.passes[-1][1].update(("token", seat) for seat in places.seats.tolist() if seat < SEATS)

    def logits(self, hidden: Tensor, out: Tensor | None = None, norm: None = None) -> Tensor:
        return torch.zeros(hidden.shape[0], 10)


class Watched(PromptsBeside):
    """Holds each pass against the other."""

    pairs = 0
    model: Noted

    @contextmanager
    def decoding(self) -> Iterator[None]:
        self.model.passes.clear()
        with super().decoding():
            yield

    @contextmanager
    def prompts(self) -> Iterator[None]:
        with super().prompts():
            yield
        (read, written), (other_read, other_written) = self.model.passes
        assert not written & (other_read | other_written)
        assert not other_written & read
        Watched.pairs += 1


asked = st.tuples(st.integers(1, 14), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2))
"""prompt tokens, new ones, the step before which it comes, and which of three texts it begins."""


@settings(max_examples=40, deadline=None)
@given(stream=st.lists(asked, min_size=2, max_size=14), order=st.sampled_from(["continuous", "diagonal"]))
def test_neither_pass_reads_or_writes_what_the_other_writes(stream: list[tuple[int, int, int, int]], order: str) -> None:
    """Prompts begin alike, so that they find pages that others have filled a moment ago."""
    model = Noted()
    engine = Engine(
        cast(Transformer, model), pages=PAGES, page_size=PAGE, seats=SEATS, sweep_tokens=24, admission=admission(order), lookahead=1
    )
    runner: Any = engine._running
    parts = cast(Transformer, model), runner.cache, runner._tokens, runner._table
    runner._graphs, runner._samplers = SweepGraphs(*parts, None), SamplerGraphs(CPU)
    runner._beside = Watched(*parts, most_prompt_tokens=16, least=1)
    runner._beside.model = model
    step = 0
    while engine.has_work or step <= max(arrives for _, _, arrives, _ in stream):
        for number, (prompt, new, arrives, text) in enumerate(stream):
            if arrives == step:
                # The texts go on with what the model says, so that what was generated is found too.
                token_ids = tuple([text] * min(prompt, 3) + [7] * max(prompt - 3, 0))
                engine.add(Request(number, token_ids, SamplingParams(max_new_tokens=new, ignore_eos=True), number, eos_token_ids=()))
        engine.step()
        step += 1
        assert step < 1000, "somebody starves"


def test_the_passes_above_were_run() -> None:
    if not Watched.pairs:  # by itself
        test_neither_pass_reads_or_writes_what_the_other_writes()
    assert Watched.pairs > 0


def share(count: int) -> Share:
    return Share(cast(Sequence, None), 0, count, samples=True)


@pytest.fixture(scope="module")
def beside() -> PromptsBeside:
    model, cache, tokens = Noted(), cast(PagedCache, SimpleNamespace(page_size=PAGE)), torch.zeros(SEATS + 1, dtype=torch.int64)
    return PromptsBeside(cast(Transformer, model), cache, tokens, torch.zeros(SEATS + 1, 4, dtype=torch.int32), most_prompt_tokens=4096)


def test_many_prompt_tokens_have_a_pass_of_their_own(beside: PromptsBeside) -> None:
    assert beside.takes([share(ONE_PASS), share(1)])
    assert not beside.takes([share(ONE_PASS)])
    assert not beside.takes([])


def test_launches_of_the_prompts_count_in_other_places() -> None:
    usual = arrivals(CPU)
    with counted_apart():
        assert arrivals(CPU) is not usual
        with counted_apart():
            apart = arrivals(CPU)
        assert arrivals(CPU) is apart
    assert arrivals(CPU) is usual
