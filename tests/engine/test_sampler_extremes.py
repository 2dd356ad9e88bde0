"""Numbers that are none, other types, and parameters at the ends of their ranges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sampling_rows import CPU, EOS, VOCABULARY, batch_of, logits_of, one

from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.schedule.sampling import SamplingParams


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_worked_on_in_float32_and_left_alone(dtype: torch.dtype) -> None:
    logits = logits_of(2, 4).to(dtype)
    before = logits.clone()
    wanted = {"repetition_penalty": 2.0, "logit_bias": {1: 5.0}, "min_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 3}
    ours, widened = sample(logits, batch_of({}, wanted, eos=EOS)), sample(logits.float(), batch_of({}, wanted, eos=EOS))
    assert torch.equal(logits, before)
    assert [one(ours, i) for i in range(2)] == [one(widened, i) for i in range(2)]


SAMPLERS = [{}, {"do_sample": True}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}, {"typical_p": 0.9}, {"repetition_penalty": 2.0}]


@pytest.mark.parametrize("wanted", SAMPLERS, ids=str)
def test_nan_counts_as_minus_infinity_and_never_spreads(wanted: dict[str, Any]) -> None:
    logits = logits_of(3, 5)
    logits[0, 1::2] = math.nan
    logits[1] = math.nan
    clean = logits.clone()
    clean[0, 1::2] = -math.inf
    sampled = sample(logits, batch_of(*[wanted | {"top_logprobs": 4}] * 3))
    expected = sample(clean, batch_of(*[wanted | {"top_logprobs": 4}] * 3))
    assert [one(sampled, i) for i in (0, 2)] == [one(expected, i) for i in (0, 2)]
    assert sampled.token_ids[0] % 2 == 0
    assert one(sampled, 1) == (0, -math.inf, tuple((i, -math.inf) for i in range(4)))


@pytest.mark.parametrize("wanted", SAMPLERS, ids=str)
def test_infinite_logits_are_the_largest_number(wanted: dict[str, Any]) -> None:
    logits = torch.full((1, VOCABULARY), -math.inf)
    logits[0, 7] = math.inf
    assert one(sample(logits, batch_of(wanted)), 0)[:2] == (7, 0.0)


EXTREMES = [
    {"temperature": 5e-324},
    {"temperature": 1e-8},
    {"temperature": 1e30},
    {"temperature": 1.7e308},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 1.7e308},
    {"frequency_penalty": 1.7e308, "presence_penalty": -1.7e308},
    {"frequency_penalty": -1.7e308},
    {"logit_bias": {3: 1.7e308, 4: -1.7e308}},
    {"top_p": 5e-324},
    {"typical_p": 5e-324},
    {"top_k": 10**300},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
@pytest.mark.parametrize("base", [{}, {"do_sample": True}, {"temperature": 0.01, "top_k": 5, "top_p": 0.9, "typical_p": 0.9}], ids=str)
def test_extreme_parameters_still_give_a_token_with_a_finite_log_probability(extreme: dict[str, Any], base: dict[str, Any]) -> None:
    row = SamplingRow(SamplingParams(**(base | extreme)), 1, [1, 2], [3, 3, 4])
    batch = SamplingBatch.build([row], VOCABULARY, CPU)
    for step in range(3):
        logits = logits_of(1, step)
        logits[0, 5:9] = -math.inf
        sampled = sample(logits, batch)
        assert math.isfinite(sampled.logprobs.item())
        assert not 5 <= sampled.token_ids.item() < 9
        batch.update(sampled.token_ids)
