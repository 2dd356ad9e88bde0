"""Sweeps as they are recorded, padding and all, against sweeps as they come: without a GPU, by a model that reads what a real one reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.engine import Engine
from inferometer.engine.prompts_beside import PromptsBeside
from inferometer.engine.sweep_graphs import PROMPTS, SweepGraphs
from inferometer.kernels.token_choice import choose
from inferometer.kernels.token_rows import Places
from inferometer.model.description import describe
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE
from inferometer.nn.residency import AllResident
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

VOCABULARY = 97
PAGE = 4
MOST_PAGES = 1600
CPU = torch.device("cpu")


class Chain:
    """A token's key is itself and its position; the next token is a sum over all keys, found where the block table says they are."""

    def __init__(self) -> None:
        self.spec = replace(describe("opt-125m", config_only=True).spec, layers=1, vocabulary=VOCABULARY)
        self.local, self.collective = self.spec, ALONE
        self.device, self.dtype = CPU, torch.float32
        self.residency = AllResident()
        self.embedding = SimpleNamespace(token=SimpleNamespace(weight=torch.zeros(VOCABULARY, 1)))
        self.keys = torch.full((MOST_PAGES * PAGE,), -(10**9))
        self.compiled = None
        self.padded = 0

    def unnormed(self, batch: RaggedBatch, cache: PagedCache) -> tuple[Tensor, None]:
        return self.sweep(batch, cache), None

    def sweep(self, batch: RaggedBatch, cache: PagedCache) -> Tensor:
        rows = batch.rows
        assert rows is not None
        if rows.entries is not None:  # as the launch does that embeds
            rows.entries.write()
        real = rows.places >= 0
        self.padded += int((~real).sum())
        self.keys[rows.places[real]] = (batch.tokens.known * 31 + batch.positions * 7 + 1)[real]
        hidden = torch.zeros(batch.token_ids.numel(), 1)
        starts = rows.starts.tolist()
        for row, context in enumerate(rows.contexts.tolist()):
            if context == 0:
                continue
            assert batch.positions[starts[row + 1] - 1] == context - 1
            for token in range(starts[row], starts[row + 1]):
                before = torch.arange(int(batch.positions[token]) + 1)
                places = rows.table[int(rows.seats[row])][before // PAGE] * PAGE + before % PAGE
                hidden[token] = int((self.keys[places] * (before + 1)).sum()) % VOCABULARY
        return hidden

    def logits(self, hidden: Tensor, out: Tensor | None = None, norm: None = None) -> Tensor:
        scores = functional.one_hot(hidden[:, 0].long(), VOCABULARY) * 10.0
        return scores if out is None else out.copy_(scores)

    def logits_room(self, rows: int) -> Tensor:
        return torch.empty(rows, VOCABULARY)

    def log_probabilities(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return -(hidden[:, 0] + targets).float()

    def choose(self, hidden: Tensor, places: Places, room: Tensor | None = None, norm: None = None) -> None:
        choose(self.logits(hidden, room), places)


GREEDY = SamplingParams()

asked = st.tuples(st.integers(1, 11), st.integers(1, 12), st.integers(0, 12), st.none() | st.integers(0, 20))
"""prompt, new tokens, the step before which it comes and, perhaps, is dropped."""


def run(
    stream: list[tuple[int, int, int, int | None]],
    order: str,
    *,
    recorded: bool,
    least: int = 1000,
    params: SamplingParams | list[SamplingParams] = GREEDY,
    seats: int = 10,
    sweep_tokens: int | None = None,
) -> tuple[dict[int, list[Emission]], Chain]:
    """least: prompt tokens beyond which prompts of recorded sweeps run in a pass of their own. params: of all, or in turn."""
    kinds = [params] if isinstance(params, SamplingParams) else params
    model = Chain()
    engine = Engine(
        cast(Transformer, model),
        pages=4 * seats,
        page_size=PAGE,
        seats=seats,
        sweep_tokens=sweep_tokens or 6 * seats,
        admission=admission(order),
        lookahead=1,
    )
    if recorded:
        runner: Any = engine._running
        runner._graphs = SweepGraphs(
            cast(Transformer, model), runner.cache, runner._tokens, runner._table, None, most_prompt_tokens=2 * least
        )
        runner._beside = PromptsBeside(
            cast(Transformer, model), runner.cache, runner._tokens, runner._table, most_prompt_tokens=2 * least, least=least
        )
        runner._samplers = SamplerGraphs(CPU)
    found: dict[int, list[Emission]] = {number: [] for number in range(len(stream))}
    step = 0
    while engine.has_work or step <= max(arrives for _, _, arrives, _ in stream):
        for number, (prompt, new, arrives, dropped) in enumerate(stream):
            if arrives == step:
                token_ids = tuple((17 * number + 5 * i) % VOCABULARY for i in range(prompt))
                engine.add(
                    Request(number, token_ids, replace(kinds[number % len(kinds)], max_new_tokens=new), number, eos_token_ids=(3, 50))
                )
            if dropped == step:
                engine.abort(number)
        for emission in engine.step():
            found[emission.request_id].append(emission)
        step += 1
        assert step < 1000, "somebody starves"
    engine.scheduler.check_pages()
    return found, model


@pytest.mark.parametrize("order", ["continuous", "zigzag", "diagonal"])
@settings(max_examples=20, deadline=None)
@given(stream=st.lists(asked, min_size=1, max_size=14))
def test_recorded_sweeps_give_what_others_give(order: str, stream: list[tuple[int, int, int, int | None]]) -> None:
    assert run(stream, order, recorded=True)[0] == run(stream, order, recorded=False)[0]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(do_sample=True, temperature=1.3), SamplingParams(repetition_penalty=1.5)])
@settings(max_examples=8, deadline=None)
@given(stream=st.lists(asked, min_size=2, max_size=14), least=st.integers(1, 6))
def test_two_passes_give_what_one_gives(params: SamplingParams, stream: list[tuple[int, int, int, int | None]], least: int) -> None:
    """Prompts of more than so many tokens have one of their own: as a graph up to twice as many, kernel by kernel beyond."""
    for order in ("continuous", "diagonal"):
        got = run(stream, order, recorded=True, least=least, params=params)[0]
        assert got == run(stream, order, recorded=False, params=params)[0]


def test_prompts_beside_those_that_decode_are_recorded_too() -> None:
    stream: list[tuple[int, int, int, int | None]] = [(5 + i, 12, i // 3, None) for i in range(9)]
    found, model = run(stream, "continuous", recorded=True)
    assert model.padded > PROMPTS
    plain, other = run(stream, "continuous", recorded=False)
    assert other.padded == 0
    assert found == plain
    assert all(found.values())


@pytest.mark.parametrize(
    ("prompts", "seats", "recorded"), [(8, 40, True), (9, 9, True), (33, 40, True), (250, 256, True), (257, 400, False)]
)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(do_sample=True, temperature=1.3)])
def test_many_prompts_are_recorded_where_none_decodes(params: SamplingParams, prompts: int, seats: int, recorded: bool) -> None:
    """As many as there are seats, up to 256: three bursts, of which the second records what the first has met."""
    bursts: list[tuple[int, int, int, int | None]] = [(1 + i % 3, 1, 4 * burst, None) for burst in range(3) for i in range(prompts)]
    found, model = run(bursts, "zigzag", recorded=True, params=params, seats=seats)
    plain, other = run(bursts, "zigzag", recorded=False, params=params, seats=seats)
    assert found == plain
    assert all(found.values())
    assert other.padded == 0
    assert (model.padded > 0) == recorded


KINDS = [
    GREEDY,
    SamplingParams(do_sample=True, temperature=1.3),
    SamplingParams(top_logprobs=2),
    SamplingParams(repetition_penalty=1.5),
    SamplingParams(min_new_tokens=1),
    SamplingParams(prompt_logprobs=True),
    SamplingParams(stop_token_ids=(7,)),
]


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.sampled_from((1, 1, 1, 2, 5, 40)), min_size=9, max_size=60),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    sweep_tokens=st.sampled_from((40, 70, 400)),
)
def test_bursts_of_prompts_of_any_kind_give_what_they_give_unrecorded(
    lengths: list[int], kinds: list[SamplingParams], sweep_tokens: int
) -> None:
    """Plain ones start before the sampler's rows are made, and no others may; prompts are cut where a sweep holds no more."""
    bursts: list[tuple[int, int, int, int | None]] = [(length, 1, 6 * burst, None) for burst in range(3) for length in lengths]
    found, _ = run(bursts, "zigzag", recorded=True, params=kinds, seats=40, sweep_tokens=sweep_tokens)
    assert found == run(bursts, "zigzag", recorded=False, params=kinds, seats=40, sweep_tokens=sweep_tokens)[0]
    assert all(found.values())
