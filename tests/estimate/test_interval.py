"""Between which values a measurement is expected: of each phase by rows of its own, of a sum by both."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.estimate import estimate
from inferometer.estimate.answer import Phase
from inferometer.estimate.deviation import load_deviations
from inferometer.estimate.interval import Factors, together

shares = st.floats(0.1, 0.99)
sizes = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(sizes, shares, shares), min_size=1, max_size=4))
def test_of_a_sum_the_ends_are_the_sums_of_the_ends(parts: list[tuple[float, float, float]]) -> None:
    both = together([(predicted, Factors(low, 1 / high, "rows")) for predicted, low, high in parts])
    whole = sum(predicted for predicted, *_ in parts)
    assert both.around(whole, 0.0) == pytest.approx(
        (sum(predicted * low for predicted, low, _ in parts), sum(predicted / high for predicted, _, high in parts))
    )


def test_sources_are_named_once() -> None:
    assert together([(1.0, Factors(1, 1, "a")), (2.0, Factors(1, 1, "b")), (3.0, Factors(1, 1, "a"))]).words == "a and b"
    assert together([(1.0, Factors(1, 1, "a and b")), (2.0, Factors(1, 1, "b"))]).words == "a and b"
    both = together([(1.0, Factors(1, 1, "a", "old")), (2.0, Factors(1, 1, "b", "old"))])
    assert both.words == "a and b (old)"
    assert together([(1.0, Factors(1, 1, "a", "old")), (2.0, Factors(1, 1, "b"))]).words == "a (old) and b"
    with pytest.raises(ValueError, match="parts"):
        together([])


def test_nothing_is_expected_below_its_bound() -> None:
    factors = Factors(0.5, 2.0, "rows")
    assert factors.around(10.0, 4.0) == (5.0, 20.0)
    assert factors.around(10.0, 8.0) == (8.0, 20.0)
    assert factors.around(10.0, 12.0) == (10.0, 20.0)  # a prediction that is below its bound stays between its ends


@pytest.mark.parametrize(("batch", "prompts"), [(64, "own-studies-prompts"), (4, "own-studies-exposed")])
def test_steps_of_the_engine_have_rows_of_their_own(batch: int, prompts: str) -> None:
    """Decode steps, prompts, and those of them that are over so soon that the host has a say."""
    found = estimate("opt-1.3b", "h200", batch_size=batch, sequence_length=512, decode_length=32, calibration=None)
    known = load_deviations()
    phases: dict[Phase, str] = {"prefill_ms": prompts, "decode_token_ms": "own-studies-decode"}
    for phase, regime in phases.items():
        factors = found.times[phase]
        assert factors.source == f"{known[regime].rows} rows of regime {regime}"
        assert factors.remark == "constants were read off some of them"
        assert factors.high == pytest.approx(max(known[regime].high, 1 + known[regime].mean))
        assert factors.source in found.basis
    assert found.total_ms is not None
    of_all = found.interval["total_ms"][1] / found.total_ms
    ends = [factors.high for factors in found.times.values()]
    assert min(ends) < of_all < max(ends)


def test_of_a_card_without_rows_it_is_said_in_words_that_the_interval_is_wider() -> None:
    known = load_deviations()["own-studies-decode"]
    found = estimate("opt-1.3b", "a100-sxm-80gb", batch_size=64, sequence_length=512, decode_length=32, calibration=None)
    factors = found.times["decode_token_ms"]
    assert factors.remark == "constants were read off some of them; none is of this card, so how far they were off is squared"
    assert f"{factors.source} ({factors.remark})" in found.basis
    assert factors.high == pytest.approx(max(known.high, 1 + known.mean) ** 2)


def test_a_stack_without_such_rows_has_one_interval() -> None:
    found = estimate(
        "opt-1.3b", "a100-sxm-80gb", batch_size=4, sequence_length=512, decode_length=32, stack="fastertransformer", calibration=None
    )
    assert found.times["prefill_ms"] == found.times["decode_token_ms"]


@pytest.mark.parametrize(("stack", "regime"), [("hf-eager", "own-studies-hf"), ("deepspeed", "own-studies-deepspeed")])
def test_where_a_host_launches_kernel_by_kernel_its_say_widens_the_interval(stack: str, regime: str) -> None:
    def decode(batch: int) -> Factors:
        return estimate("gpt2-xl", "h200", batch_size=batch, sequence_length=512, decode_length=32, stack=stack, calibration=None).times[
            "decode_token_ms"
        ]

    waits, runs = decode(1), decode(4096)
    assert waits.source.endswith(f"rows of regime {regime}-exposed")
    assert runs.source.endswith(f"rows of regime {regime}")
    assert waits.high / waits.low > runs.high / runs.low


@pytest.mark.parametrize("stack", ["native", "hf-eager", "deepspeed"])
def test_a_token_more_does_not_change_how_far_a_time_may_be_off(stack: str) -> None:
    """Where the host's say begins, and on either side of it: by so much as rows of both kinds are apart, over a doubling of the time."""

    def prompts(length: int) -> Factors:
        return estimate("opt-6.7b", "h100-sxm", batch_size=4, sequence_length=length, stack=stack, calibration=None).times["prefill_ms"]

    found = [prompts(length) for length in range(32, 1024, 6)]
    widths = [each.high / each.low for each in found]
    assert len({each.source for each in found}) == 3
    assert widths[0] > 1.2 * widths[-1]
    assert all(before / 1.2 < after < before * 1.01 for before, after in pairwise(widths))
