"""Recorded sweeps that end in tokens: those of the logits, at the seats that the next sweep reads. Without a GPU graphs are calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.engine.facts import Facts
from inferometer.engine.sweep_graphs import FEW_TOKENS, LAYER_FLOPS, PROMPT_COUNTS, PROMPT_TOKENS, PROMPTS, SweepGraphs, worth_recording
from inferometer.estimate.stack import find_stack
from inferometer.kernels.token_choice import best, choose_torch
from inferometer.kernels.token_rows import Places
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.residency import AllResident
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.pages import PagePool
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.scheduler import Scheduler
from inferometer.schedule.sweep import Share

PAGE, SEATS, VOCABULARY = 4, 12, 50


class Bigrams:
    """A model that sees one token: its logits are a row of a table. Stands in for a transformer."""

    def __init__(self) -> None:
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.residency = AllResident()
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))

    def unnormed(self, batch: RaggedBatch, cache: object) -> tuple[Tensor, None]:
        return torch.nn.functional.one_hot(batch.tokens.known, VOCABULARY).float(), None

    def logits_room(self, rows: int) -> Tensor:
        return torch.full((rows, VOCABULARY + 14), torch.nan)[:, :VOCABULARY]

    def logits(self, hidden: Tensor, out: Tensor, norm: None = None) -> Tensor:
        return torch.mm(hidden, self.table, out=out)

    def choose(self, hidden: Tensor, places: Places, room: Tensor, norm: None) -> None:
        choose_torch(self.logits(hidden, room), places)


class Sweeps:
    """A scheduler of some prompts, whose seats hold known tokens, and the graphs."""

    def __init__(self, prompts: list[int]) -> None:
        self.scheduler = Scheduler(PagePool(400, PAGE), Continuous(), max_batch=SEATS, sweep_tokens=90, prefix_caching=False)
        self.number = 0
        self.add(prompts)
        self.model = Bigrams()
        self.newest = torch.arange(SEATS + 1)
        stride = torch.zeros(SEATS + 1, 30, dtype=torch.int32)
        model: Any = self.model
        cache: Any = SimpleNamespace(page_size=PAGE)
        self.graphs = SweepGraphs(model, cache, self.newest, stride, None)

    def add(self, prompts: list[int]) -> None:
        params = SamplingParams(max_new_tokens=50, ignore_eos=True)
        for length in prompts:
            self.scheduler.add(Request(self.number, tuple(range(20, 20 + length)), params, 0))
            self.number += 1

    def next(self) -> tuple[list[Share], list[Share]]:
        sweep = self.scheduler.next()
        assert sweep is not None
        return [s for s in sweep.shares if s.decodes], [s for s in sweep.shares if not s.decodes]


def facts(shares: tuple[list[Share], list[Share]]) -> tuple[Facts, Facts]:
    decoding, rest = shares
    return Facts.of(decoding, PAGE), Facts.of(rest, PAGE)


def seats(shares: list[Share]) -> list[int]:
    found = [share.sequence.seat for share in shares if share.samples]
    assert None not in found
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("prompts", [[3], [5, 2, 9], [4] * 11])
def test_a_decode_sweep_follows_the_tokens_that_the_one_before_has_left_at_the_seats(prompts: list[int]) -> None:
    sweeps = Sweeps(prompts)
    sweeps.next()
    now = list(range(SEATS))
    for _ in range(4):  # the third time as a graph
        decoding, rest = sweeps.next()
        assert not rest
        sampled = sweeps.graphs.choose(*facts((decoding, rest)))
        want = best(sweeps.model.table[torch.tensor([now[seat] for seat in seats(decoding)])]).tolist()
        assert sampled.token_ids.tolist() == want
        assert sampled.fetch().read().token_ids == want
        for seat, token in zip(seats(decoding), want, strict=True):
            now[seat] = token
        assert sweeps.newest[:SEATS].tolist() == now


def test_tokens_are_the_best_of_the_logits_beside_prompts_too() -> None:
    sweeps = Sweeps([3, 6])
    sweeps.next()
    sweeps.add([7, 2])
    decoding, rest = sweeps.next()
    assert decoding
    assert rest
    logits, places = sweeps.graphs.run(*facts((decoding, rest)))
    count = len(seats([*decoding, *rest]))
    want, before = best(logits[:count]), sweeps.newest.clone()
    assert places[:count].tolist() == seats([*decoding, *rest])
    sampled = sweeps.graphs.choose(*facts((decoding, rest)))
    assert torch.equal(sampled.token_ids, want)
    before[places[:count]] = want
    assert torch.equal(sweeps.newest[:SEATS], before[:SEATS])


def test_each_kind_is_recorded_for_itself() -> None:
    sweeps = Sweeps([3, 6])
    sweeps.next()
    for kind in (sweeps.graphs.choose, sweeps.graphs.run):
        recorded = sweeps.graphs.recorded
        for _ in range(2):
            kind(*facts(sweeps.next()))
        assert sweeps.graphs.recorded == recorded + 1


def test_what_has_been_made_grows_until_every_size_is_recorded() -> None:
    """Met, then recorded, then as it will always be: in each of two kinds of sweep."""
    sweeps = Sweeps([3, 6])
    sweeps.next()
    grown = []
    for _ in range(4):
        before = sweeps.graphs.preparations
        shares = facts(sweeps.next())
        sweeps.graphs.choose(*shares)
        sweeps.graphs.run(*shares)
        grown.append(sweeps.graphs.preparations - before)
    assert grown == [2, 2, 0, 0]


def test_the_estimator_knows_which_prompts_are_recorded() -> None:
    stack = find_stack("native")
    assert (stack.recorded_prompts, stack.recorded_prompts_alone) == (PROMPTS, PROMPT_COUNTS[-1])
    assert (stack.recorded_tokens, stack.recorded_most_tokens, stack.recorded_layer_flops) == (FEW_TOKENS, PROMPT_TOKENS[-1], LAYER_FLOPS)


def test_larger_models_have_fewer_recorded_sizes() -> None:
    """Of opt-125m, opt-1.3b, opt-6.7b and opt-30b: the GPU is busy for longer with each token."""
    assert [worth_recording(12 * hidden**2) for hidden in (768, 2048, 4096, 7168)] == [PROMPT_TOKENS[-1], 2560, 640, FEW_TOKENS]
