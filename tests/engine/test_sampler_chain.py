"""All steps of the sampler together against transformers' processors in their order."""

from __future__ import annotations

import dataclasses
import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_rows import CPU, VOCABULARY, logits_of, one, rows_of_any_kind
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.schedule.sampling import SamplingParams


class CountPenalties(LogitsProcessor):
    """OpenAI's penalties, by their definition."""

    def __init__(self, p: SamplingParams, prompt: int) -> None:
        self.p, self.prompt = p, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, self.prompt :], minlength=scores.shape[-1])
        return scores - counts * self.p.frequency_penalty - (counts > 0) * self.p.presence_penalty


class Biases(LogitsProcessor):
    def __init__(self, p: SamplingParams) -> None:
        self.p = p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bias = torch.tensor([(self.p.logit_bias or {}).get(t, 0.0) for t in range(scores.shape[-1])])
        return scores + bias


def transformers_chain(row: SamplingRow) -> LogitsProcessorList:
    p, prompt, chain = row.params, len(row.prompt_token_ids), LogitsProcessorList()
    ends = ([] if p.ignore_eos else list(row.eos_token_ids)) + list(p.stop_token_ids)
    chain += [RepetitionPenaltyLogitsProcessor(p.repetition_penalty), CountPenalties(p, prompt), Biases(p)]
    chain += [MinNewTokensLengthLogitsProcessor(prompt, p.min_new_tokens, ends)] if ends else []
    if p.samples:
        chain += [TemperatureLogitsWarper(p.temperature)]
        chain += [TopKLogitsWarper(p.top_k)] if p.top_k else []
        chain += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
        chain += [TypicalLogitsWarper(p.typical_p)] if p.typical_p < 1 else []
    return chain


@settings(deadline=None, max_examples=80)
@given(rows_of_any_kind, st.integers(0, 1000))
def test_the_whole_chain_equals_transformers_processors_in_order(rows: list[SamplingRow], seed: int) -> None:
    rows = [
        dataclasses.replace(
            row,
            params=dataclasses.replace(
                row.params,
                watermark=False,
                top_logprobs=VOCABULARY,
                # Extremes, where the warper itself overflows, have tests of their own.
                temperature=row.params.temperature if 0.1 < row.params.temperature < 10 else 0.9,
            ),
        )
        for row in rows
    ]
    logits = logits_of(len(rows), seed)
    sampled = sample(logits, SamplingBatch.build(rows, VOCABULARY, CPU))
    for i, row in enumerate(rows):
        ids = torch.tensor([[*row.prompt_token_ids, *row.generated_token_ids]])
        expected = transformers_chain(row)(ids, logits[i : i + 1].clone()).log_softmax(-1)[0]
        for nearly in (1 - 2e-6, 1 + 2e-6):
            # A mass that ends at a token but for rounding decides nothing about the filter.
            asked = {name: getattr(row.params, name) for name in ("top_p", "typical_p")}
            p = dataclasses.replace(row.params, **{name: min(1.0, mass * nearly) for name, mass in asked.items() if mass < 1})
            beside = transformers_chain(dataclasses.replace(row, params=p))(ids, logits[i : i + 1].clone())[0]
            assume(torch.equal(beside.isneginf(), expected.isneginf()))
        token, logprob, top = one(sampled, i)
        ours = torch.tensor([x for _, x in sorted(top)])
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        assert logprob == ours[token].item()
        if row.params.greedy:
            assert token == int(expected.argmax())
        else:
            assert expected[token] > -math.inf
