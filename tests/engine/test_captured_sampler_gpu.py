"""Recorded samplers on a GPU: what the eager one gives, and nothing that waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from captured_steps import VOCABULARY, Captured, eager, logits_of

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.draws import DRAWS
from inferometer.engine.sampled import Fetched
from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.schedule.sampling import SamplingParams

MIXES = [
    [{}, {}],
    [{"do_sample": True}, {}],
    [{"temperature": 0.7, "top_k": 5}, {"top_p": 0.9}, {}, {"typical_p": 0.8, "temperature": 1e-8}],
]


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_a_replayed_graph_gives_what_the_eager_sampler_gives_through_changes_of_the_batch(mix: list[dict[str, Any]]) -> None:
    device = torch.device("cuda")
    captured = Captured(8, device, cuda_graph)

    def build() -> SamplingBatch:
        return SamplingBatch.build([SamplingRow(SamplingParams(**w), i, [1]) for i, w in enumerate(mix)], VOCABULARY, device)

    ours, theirs = build(), build()
    for at in range(DRAWS + 10):
        if at % 7 == 6:
            order = list(range(len(ours)))[at % 2 :]
            ours, theirs = ours.select(order), theirs.select(order)
        if at % 14 == 13:
            ours.extend(build())
            theirs.extend(build())
            ours, theirs = (batch.select(list(range(len(batch)))[-8:]) for batch in (ours, theirs))
        logits = logits_of(len(ours), at).to(device)
        assert captured.step(logits, ours) == eager(logits, theirs), at


EVERYTHING: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "temperature": 0.7, "top_logprobs": 3},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {3: 1.0}, "min_new_tokens": 5},
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mix", [EVERYTHING, *MIXES], ids=str)
def test_neither_a_step_nor_a_change_of_the_batch_ever_waits_for_the_gpu(mix: list[dict[str, Any]]) -> None:
    device = torch.device("cuda")
    rows = [SamplingRow(SamplingParams(**w), i, [1, 2, 99], (3, 3), (2,)) for i, w in enumerate(mix)]
    logits = [logits_of(2 * len(rows), at).to(device) for at in range(6)]
    graphs, static = SamplerGraphs(device), torch.zeros(2 * len(rows), VOCABULARY, device=device)

    def steps() -> list[Fetched]:
        batch, fetched = SamplingBatch.build(rows, VOCABULARY, device), []
        for at, scores in enumerate(logits):
            if at == 2:
                batch.extend(SamplingBatch.build(rows, VOCABULARY, device))
            if at == 4:
                batch = batch.select(range(len(batch))[1::2])
            sampler = graphs.sampler_for(len(static), batch.plan())
            if sampler is None:
                sampled = sample(scores[: len(batch)], batch)
            else:
                if sampler.replay is None:
                    sampler.replay = cuda_graph(partial(sampler.run, static))
                static.copy_(scores)
                sampler.load(batch.plan())
                assert sampler.replay is not None
                sampler.replay()
                sampled = sampler.sampled(len(batch))
            fetched.append(sampled.fetch())
            batch.update(sampled.token_ids)
        return fetched

    expected = [fetched.read() for fetched in steps()]
    torch.cuda.synchronize()
    # Half a second, behind which everything has to queue; longer where a busy host needs that for itself. Who waits, waits always.
    for clocks in (1_000_000_000, 4_000_000_000, 16_000_000_000):
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(clocks)
            slept = torch.cuda.Event()
            slept.record()
            fetched = steps()
            queued = not slept.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [step.read() for step in fetched] == expected
        if queued:
            break
    assert queued
