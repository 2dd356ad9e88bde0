"""Steps of a batch through captured samplers and through the eager one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.sampler import SamplingBatch, sample

VOCABULARY = 24
CPU = torch.device("cpu")


def logits_of(rows: int, seed: int, vocabulary: int = VOCABULARY) -> Tensor:
    """float32 [rows, vocabulary], with one that is no number, or infinite, in most seeds."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, 1::5] = logits[:, :1]  # equals, for the edges of the filters
    logits[:, 4] = [math.nan, -math.inf, math.inf, 0.0][seed % 4]
    return logits


def called(function: Callable[[], None]) -> Callable[[], None]:
    """A graph where there are none."""
    return function


class Captured:
    """Steps of a batch through captured samplers of `bucket` rows, as an engine would take them."""

    def __init__(self, bucket: int, device: torch.device = CPU, graph: Callable[..., Callable[[], None]] = called) -> None:
        self.graphs, self.graph = SamplerGraphs(device), graph
        self.logits = torch.zeros(bucket, VOCABULARY, device=device)

    def step(self, logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[float]]:
        """Tokens and log-probabilities of the rows, which the batch then has."""
        plan = batch.plan()
        sampler = self.graphs.sampler_for(len(self.logits), plan)
        assert sampler is not None
        if sampler.replay is None:
            sampler.replay = self.graph(partial(sampler.run, self.logits))
        self.logits[: len(batch)] = logits
        sampler.load(plan)
        assert sampler.replay is not None
        sampler.replay()
        sampled = sampler.sampled(len(batch))
        fetched = sampled.fetch()
        batch.update(sampled.token_ids)
        token_ids, logprobs, tops = fetched.read()
        assert tops == [()] * len(token_ids)
        return token_ids, logprobs


def eager(logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[float]]:
    """The same, without captured samplers."""
    sampled = sample(logits, batch)
    batch.update(sampled.token_ids)
    return sampled.token_ids.tolist(), sampled.logprobs.tolist()
