"""What filters and temperature leave, against transformers' warpers, row by row and in mixed batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from inferometer.kernels.token_choice import BITS, processed
from inferometer.kernels.token_filters import SELECTED, Filters, bounds_torch
from inferometer.kernels.token_rows import Drawing

NONE = torch.empty(1, 0, dtype=torch.int64)  # the warpers compared with do not look at tokens
quick = settings(deadline=None, max_examples=80)

finite = st.floats(-30, 30, width=32)
tied = st.integers(-4, 4).map(float)
# Nearer to 1 than a probability's whole numbers tell by a few digits, the least likely token is lost: [20, -8] at 1 - 2^-53.
shares = st.floats(2**-20, 1 - 2.0 ** (10 - BITS)) | st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1e-9])


@st.composite
def score_rows(draw: st.DrawFn, elements: st.SearchStrategy[float], *, unique: bool = False, banned: bool = True) -> Tensor:
    """One row of scores, of which some may be -inf but not all."""
    row = draw(st.lists(elements, min_size=1, max_size=40, unique=unique))
    kept = draw(st.integers(0, len(row) - 1))
    bans = draw(st.sets(st.integers(0, len(row) - 1))) if banned else set()
    return torch.tensor([[-math.inf if i in bans and i != kept else x for i, x in enumerate(row)]])


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def left(scores: Tensor, **asked: Tensor) -> Tensor:
    """Scores with what the filters take out at -inf; each parameter [rows, 1]."""
    largest = int(asked["top_k"].max()) if "top_k" in asked else 0
    wanted = Filters(torch.ones(len(scores)), largest_k=largest, **{name: values.squeeze(1) for name, values in asked.items()})
    return processed(scores, None, bounds_torch(scores, wanted))


def tempered(scores: Tensor, temperatures: Tensor) -> Tensor:
    """Scores at these temperatures, [rows, 1]."""
    nothing = torch.zeros(len(scores))
    return processed(scores, Drawing(nothing, temperatures.squeeze(1), nothing[:, None]), None)


def kept(scores: Tensor) -> list[float]:
    return sorted(scores[scores > -math.inf].tolist())


@quick
@given(score_rows(finite | tied), st.integers(1, 50))
def test_top_k_equals_transformers_ties_included(scores: Tensor, k: int) -> None:
    ours = min(k, scores.shape[-1])
    assert torch.equal(left(scores, top_k=torch.tensor([[ours]])), TopKLogitsWarper(k)(NONE, scores))


@quick
@given(score_rows(finite, unique=True), shares)
def test_top_p_equals_transformers(scores: Tensor, p: float) -> None:
    assert torch.equal(left(scores, tails=column(1 - p)), TopPLogitsWarper(p)(NONE, scores))


@quick
@given(score_rows(tied), shares)
def test_top_p_keeps_as_many_of_equal_scores_as_transformers_those_of_lower_id(scores: Tensor, p: float) -> None:
    ours = left(scores, tails=column(1 - p))
    assert kept(ours) == kept(TopPLogitsWarper(p)(NONE, scores))
    for value in set(kept(ours)):
        alike = (scores[0] == value).nonzero().flatten()
        stay = (ours[0, alike] == value).tolist()
        assert stay == sorted(stay, reverse=True)


@quick
@given(score_rows(tied | finite), shares)
def test_typical_p_equals_transformers(scores: Tensor, mass: float) -> None:
    # Away from the places where the last bit of the entropy or of a sum decides.
    logprobs = scores.double().log_softmax(-1)[0]
    entropy = -(logprobs * logprobs.exp()).nansum()
    distance, order = (-logprobs - entropy).abs().sort()
    reached = logprobs.exp()[order].cumsum(-1)
    gaps = distance.diff()[reached[:-1] < 1]
    same = scores[0][order].diff()[: len(gaps)] == 0
    assume(bool(((gaps > 1e-4) | same).all()))
    assume(bool(((reached - mass).abs() > 1e-5).all()))
    assert torch.equal(left(scores, masses=column(mass)), TypicalLogitsWarper(mass)(NONE, scores))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 10, 17, 50])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.95])
def test_equal_scores_at_the_very_edge(size: int, p: float) -> None:
    scores = torch.full((1, size), 0.5)
    assert kept(left(scores, tails=column(1 - p))) == kept(TopPLogitsWarper(p)(NONE, scores))
    assert torch.equal(left(scores, masses=column(p)), TypicalLogitsWarper(p)(NONE, scores))


@quick
@given(score_rows(finite | tied), st.floats(0.01, 100))
def test_temperature_gives_the_same_probabilities_as_transformers(scores: Tensor, t: float) -> None:
    ours = tempered(scores, column(t)).softmax(-1)
    torch.testing.assert_close(ours, TemperatureLogitsWarper(t)(NONE, scores.double()).softmax(-1).float(), rtol=1e-4, atol=1e-6)


@quick
@given(score_rows(st.floats(-(2.0**126), 2.0**126, width=32) | tied), st.sampled_from([torch.finfo(torch.float32).tiny, 1e-30, 1e-8]))
def test_a_tiny_temperature_shares_everything_among_the_best(scores: Tensor, t: float) -> None:
    probabilities = tempered(scores, column(t)).softmax(-1)
    best = scores == scores.max()
    assume(bool((scores.max() - scores[~best] > 1e-3).all()))
    assert torch.equal(probabilities, best / best.sum())


@quick
@given(score_rows(finite | tied), st.sampled_from([1e30, torch.finfo(torch.float32).max]))
def test_a_huge_temperature_makes_what_is_allowed_equally_likely(scores: Tensor, t: float) -> None:
    allowed = scores > -math.inf
    torch.testing.assert_close(tempered(scores, column(t)).softmax(-1), allowed / allowed.sum())


def test_no_temperature_changes_no_distance() -> None:
    scores = torch.tensor([[0.1, -math.inf, 3.0, -3e38, 1e-40]])
    assert torch.equal(tempered(scores, column(1)), scores - 3.0)


FILTERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "temperature": (tempered, lambda u: u * 2 + 0.1),
    "top_k": (lambda s, p: left(s, top_k=p.long()), lambda u: (u * 30).floor() + 1),
    "top_p": (lambda s, p: left(s, tails=p), lambda u: u),
    "typical_p": (lambda s, p: left(s, masses=p), lambda u: u * 0.9 + 0.05),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocabulary", [31, 1000, 49153])
def test_a_row_among_others_is_the_row_alone_bit_by_bit(name: str, vocabulary: int) -> None:
    apply, parameter = FILTERS[name]
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(5, vocabulary, generator=generator) * 4
    parameters = parameter(torch.rand(5, 1, generator=generator))
    together = apply(scores, parameters)
    for i in range(5):
        assert torch.equal(together[i : i + 1], apply(scores[i : i + 1].clone(), parameters[i : i + 1])), i


@pytest.mark.parametrize("name", FILTERS)
def test_a_row_without_any_finite_score_stays_one(name: str) -> None:
    apply, parameter = FILTERS[name]
    scores = torch.tensor([[-math.inf] * 40, [0.0] * 40])
    result = apply(scores, parameter(torch.full((2, 1), 0.5)))
    assert (result[0] == -math.inf).all()
    assert (result[1] > -math.inf).any()


def test_a_tiny_share_keeps_the_best() -> None:
    scores = torch.tensor([[1.0, 5.0, 4.999, -2.0]])
    assert kept(left(scores, tails=column(1 - 1e-12))) == [5.0]


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("tied", [False, True])
def test_selecting_the_best_leaves_what_sorting_all_leaves(spread: float, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of the best are enough for a row that has a few likely tokens; where they are not, the whole row is sorted."""
    scores = torch.randn(6, 3 * SELECTED[-1], generator=torch.Generator().manual_seed(7)) * spread
    scores = (scores * 8).round() / 8 if tied else scores
    shares = torch.tensor([0.01, 0.1, 0.3, 0.5, 0.9, 0.99])[:, None]
    few = [left(scores, tails=shares), left(scores, masses=shares)]
    monkeypatch.setattr("inferometer.kernels.token_filters.SELECTED", ())
    assert torch.equal(few[0], left(scores, tails=shares))
    assert torch.equal(few[1], left(scores, masses=shares))


def test_filters_follow_each_other() -> None:
    """Each sees the probabilities of what the one before has left."""
    scores = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04]).log()[None]
    assert kept(left(scores, top_k=torch.tensor([[3]]), tails=column(1 - 0.7))) == kept(scores[:, :2])
    assert kept(left(scores, tails=column(1 - 0.7))) == kept(scores[:, :2])
    assert kept(left(scores, top_k=torch.tensor([[2]]), tails=column(1 - 0.55))) == kept(scores[:, :1])
    assert kept(left(scores, top_k=torch.tensor([[2]]), tails=column(-1.0))) == kept(scores[:, :2])
