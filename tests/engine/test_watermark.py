"""The watermark: its green lists, where it applies, and that a detector finds it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.engine.watermark import Watermark, WatermarkEdit
from inferometer.schedule.sampling import SamplingParams

CPU = torch.device("cpu")


def test_green_lists_are_those_of_the_published_scheme() -> None:
    # The first half of torch's CPU permutation under the seed 15485863 x previous token.
    assert Watermark().green(0, 10).tolist() == torch.randperm(10, generator=torch.Generator().manual_seed(0))[:5].tolist()
    assert Watermark().green(7, 1001).tolist() == torch.randperm(1001, generator=torch.Generator().manual_seed(108401041))[:500].tolist()


def test_gamma_is_the_green_share_rounded_down() -> None:
    assert [len(Watermark(gamma=gamma).green(3, 10)) for gamma in (0, 0.25, 0.5, 0.99, 1)] == [0, 2, 5, 9, 10]


@pytest.mark.parametrize(
    "settings", [{"gamma": -0.1}, {"gamma": 1.1}, {"gamma": float("nan")}, {"delta": float("inf")}, {"delta": float("nan")}]
)
def test_bad_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="watermark"):
        Watermark(**settings)


def test_only_rows_that_asked_gain_and_by_the_token_before() -> None:
    scores = torch.zeros(3, 20)
    WatermarkEdit(Watermark(delta=1.5), [0, 2], torch.tensor([4, 4, 9])).apply(scores)
    for row, previous in ((0, 4), (2, 9)):
        assert sorted(scores[row].nonzero().flatten().tolist()) == sorted(Watermark().green(previous, 20).tolist())
        assert scores[row].unique().tolist() == [0.0, 1.5]
    assert not scores[1].any()


def test_the_token_before_is_the_last_of_the_prompt_then_the_newest() -> None:
    row = SamplingRow(SamplingParams(watermark=True), 0, [1, 2, 3])
    batch = SamplingBatch.build([row], 50, CPU)
    previous = 3
    for step in range(5):
        # Equal logits: the first green token wins.
        token = sample(torch.full((1, 50), 0.25), batch).token_ids
        assert token.item() == min(Watermark().green(previous, 50).tolist()), step
        batch.update(token)
        previous = int(token.item())


def test_a_resumed_row_goes_on_from_its_newest_token() -> None:
    row = SamplingRow(SamplingParams(watermark=True), 0, [1, 2, 3], [9, 8])
    token = sample(torch.zeros(1, 50), SamplingBatch.build([row], 50, CPU)).token_ids
    assert token.item() == min(Watermark().green(8, 50).tolist())


def test_a_watermark_needs_a_token_to_start_from() -> None:
    with pytest.raises(ValueError, match="before the first"):
        SamplingRow(SamplingParams(watermark=True), 0, [])


def test_a_detector_finds_the_watermark_and_nothing_where_there_is_none() -> None:
    vocabulary, steps = 100, 120
    rows = [SamplingRow(SamplingParams(do_sample=True, watermark=marked), seed, [5]) for marked in (True, False) for seed in range(4)]
    batch = SamplingBatch.build(rows, vocabulary, CPU)
    logits = torch.randn(len(rows), vocabulary, generator=torch.Generator().manual_seed(1))
    tokens = [torch.full((len(rows),), 5)]
    for _ in range(steps):
        tokens.append(sample(logits, batch).token_ids)
        batch.update(tokens[-1])
    texts = torch.stack(tokens, dim=1).tolist()
    greens = [sum(new in Watermark().green(old, vocabulary) for old, new in pairwise(text)) for text in texts]
    # Half of them by chance, with a standard deviation of 5.5; e^2 / (1 + e^2) = 88 % with the bonus.
    assert min(greens[:4]) > 90
    assert max(greens[4:]) < 80
