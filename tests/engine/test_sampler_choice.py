"""Drawing from a distribution: exact at the edges, right on the whole; and ranking the likeliest."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.choice import likeliest
from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.kernels.token_choice import draw
from inferometer.schedule.sampling import SamplingParams

CPU = torch.device("cpu")
JUST_BELOW_ONE = 1 - 2.0**-53
quick = settings(deadline=None, max_examples=80)

weights = st.lists(st.sampled_from([0.0, 1e-30, 1e-6, 0.1, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30).filter(any)
uniforms = st.floats(0, JUST_BELOW_ONE) | st.sampled_from([0.0, 2.0**-53, 0.5, JUST_BELOW_ONE])


def logprobs_of(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64).log().float().log_softmax(-1)


def pick(logprobs: torch.Tensor, u: float) -> int:
    return int(draw(logprobs, torch.tensor([[u]], dtype=torch.float64)).item())


@quick
@given(weights, uniforms)
def test_the_chosen_token_is_where_the_cumulative_distribution_passes_the_number(values: list[float], u: float) -> None:
    logprobs = logprobs_of(values)
    token = pick(logprobs, u)
    probabilities = logprobs.double().exp()[0]
    share = u * probabilities.sum().item()
    below = probabilities[:token].sum().item()
    assert probabilities[token] > 0
    assert below <= share + 1e-6  # exponentials are rounded to float32
    assert share <= below + probabilities[token].item() + 1e-6


@pytest.mark.parametrize("u", [0.0, 0.5, JUST_BELOW_ONE])
def test_a_token_without_probability_is_never_chosen_at_either_edge(u: float) -> None:
    assert pick(logprobs_of([0.0, 0.0, 1.0, 0.0, 0.0]), u) == 2
    first_or_last = pick(logprobs_of([0.0, 0.3, 0.0, 0.7, 0.0]), u)
    assert first_or_last == (1 if u == 0 else 3)


@pytest.mark.parametrize("vocabulary", [2, 1000, 250_880])
def test_the_last_possible_number_chooses_the_last_possible_token(vocabulary: int) -> None:
    logprobs = torch.randn(1, vocabulary + 5, generator=torch.Generator().manual_seed(0))
    logprobs[:, vocabulary:] = -math.inf
    logprobs = logprobs.log_softmax(-1)
    assert pick(logprobs, JUST_BELOW_ONE) == vocabulary - 1
    assert pick(logprobs, 0.0) == 0


def test_a_row_without_probability_gives_token_zero() -> None:
    both = torch.cat((torch.full((1, 4), -math.inf), logprobs_of([0.0, 0.0, 1.0, 0.0])))
    assert draw(both, torch.full((2, 1), 0.9, dtype=torch.float64)).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"do_sample": True}, [0.4, 0.3, 0.2, 0.06, 0.04, 0.0]),
        ({"temperature": 0.5}, [0.16, 0.09, 0.04, 0.0036, 0.0016, 0.0]),
        ({"top_k": 3}, [0.4, 0.3, 0.2, 0.0, 0.0, 0.0]),
        ({"top_p": 0.65}, [0.4, 0.3, 0.0, 0.0, 0.0, 0.0]),
        ({"top_k": 4, "top_p": 0.8, "temperature": 2.0}, [0.4**0.5, 0.3**0.5, 0.2**0.5, 0.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_frequencies_follow_the_distribution(wanted: dict[str, Any], expected: list[float]) -> None:
    rows, steps = 100, 40
    params = SamplingParams(**wanted)
    batch = SamplingBatch.build([SamplingRow(params, seed, [1]) for seed in range(rows)], 6, CPU)
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04, 0.0]]).log().expand(rows, 6)
    counts = torch.zeros(6, dtype=torch.int64)
    for _ in range(steps):
        token_ids = sample(logits, batch).token_ids
        batch.update(token_ids)
        counts += torch.bincount(token_ids, minlength=6)
    share = torch.tensor(expected, dtype=torch.float64)
    means = share / share.sum() * rows * steps
    possible = means > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - means)[possible] ** 2 / means[possible]).sum().item()
    # The seeds are fixed, so this passes or fails for good. Beyond this with a chance of 1 in 1000 if the sampler is right.
    assert chi_square < {5: 18.5, 3: 13.8, 2: 10.8}[int(possible.sum())]


def test_neighbouring_places_and_seeds_are_independent() -> None:
    rows, steps = 64, 100
    batch = SamplingBatch.build([SamplingRow(SamplingParams(do_sample=True), seed, [1]) for seed in range(rows)], 2, CPU)
    drawn = []
    for _ in range(steps):
        drawn.append(sample(torch.zeros(rows, 2), batch).token_ids)
        batch.update(drawn[-1])
    coins = torch.stack(drawn)
    for agree in ((coins[1:] == coins[:-1]).float(), (coins[:, 1:] == coins[:, :-1]).float()):
        assert abs(agree.mean().item() - 0.5) < 4 * 0.5 / math.sqrt(agree.numel())


@quick
@given(
    st.lists(st.floats(-50, 0, width=32) | st.sampled_from([0.0, -0.0, -1.0, -math.inf]), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_the_likeliest_are_sorted_by_log_probability_then_id(values: list[float], count: int) -> None:
    ids, logprobs = likeliest(torch.tensor([values]), count)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert ids[0].tolist() == order
    assert logprobs[0].tolist() == [values[i] for i in order]
