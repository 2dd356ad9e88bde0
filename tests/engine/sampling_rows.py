"""Rows of any kind for the sampler, their logits, and what it says of one."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.engine.sampler import Sampled, SamplingBatch, SamplingRow
from inferometer.schedule.sampling import SamplingParams

VOCABULARY = 24
CPU = torch.device("cpu")
EOS = (2,)
quick = settings(deadline=None, max_examples=40)

tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Anything a request may ask, each option left alone half the time."""
    options: dict[str, st.SearchStrategy[Any]] = {
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0.0, 1e-8, 0.5, 0.7, 1.3, 5.0, 1e30]),
        "top_k": st.integers(1, VOCABULARY + 5),
        "top_p": st.floats(0.01, 1),
        "typical_p": st.floats(0.01, 1),
        "repetition_penalty": st.floats(0.5, 2),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=3),
        "min_new_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=2),
        "ignore_eos": st.booleans(),
        "watermark": st.booleans(),
        "top_logprobs": st.integers(0, VOCABULARY),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=6))
    return SamplingParams(**{name: draw(options[name]) for name in sorted(chosen)})


rows_of_any_kind = st.lists(
    st.builds(SamplingRow, params(), st.integers(0, 2**64 - 1), tokens, st.just(()) | tokens, st.just(EOS)), min_size=1, max_size=6
)


def logits_of(rows: int, seed: int, vocabulary: int = VOCABULARY) -> Tensor:
    """float32 [rows, vocabulary]."""
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def one(sampled: Sampled, row: int) -> tuple[int, float, tuple[tuple[int, float], ...]]:
    """A row's token, its log-probability and the likeliest pairs."""
    return int(sampled.token_ids[row].item()), sampled.logprobs[row].item(), sampled.tops()[row]


def batch_of(*wanted: dict[str, Any], seed: int = 0, vocabulary: int = VOCABULARY, eos: tuple[int, ...] = ()) -> SamplingBatch:
    """A row for each set of parameters, with the seeds that follow `seed`."""
    return SamplingBatch.build([SamplingRow(SamplingParams(**w), seed + i, [1], (), eos) for i, w in enumerate(wanted)], vocabulary, CPU)
