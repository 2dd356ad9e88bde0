"""Cells of a study's tables: templates of figures, and the figures themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.study.cell import shaped, template_of
from inferometer.bench.study.figure import FIGURES, Quantities, find_figure, limit


def test_figures_alone_are_shown_in_their_own_decimals() -> None:
    cell = template_of("throughput | msec_per_token")
    assert cell.text((51.594, 19.382)) == "51.59 | 19.38"
    assert cell.plain


def test_words_stand_between_figures() -> None:
    assert template_of("{latency:.2f}s of {memory} GiB").text((1.376, 2.0)) == "1.38s of 2.000 GiB"


def test_a_source_and_a_statistic() -> None:
    cell = template_of("{error.forward_ms} {share.latency} {prefill_ms.p90:.1f}")
    assert [(each.source, each.statistic) for each in cell.fields] == [("error", "mean"), ("share", "mean"), ("measured", "p90")]
    assert cell.text((0.0635, 0.5, 12.34)) == "+6.35% 50.0% 12.3"
    assert not cell.plain


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no figure"),
        ("a | ", "names no figure"),
        ("{", "names no figure"),
        ("{}", "is not {[source.]figure[.statistic][:shape]}"),
        ("{guess.latency}", "is not {[source.]figure[.statistic][:shape]}"),
        ("{latency.p95}", "is not {[source.]figure[.statistic][:shape]}"),
        ("{predicted.latency.p90}", "only what is measured has runs"),
        ("{latency:x}", "the shape 'x' is not one such as"),
        ("{latency!r}", "is not {[source.]figure"),
        ("{latency:{memory}}", "names no figure"),
    ],
)
def test_what_is_no_cell(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        template_of(text)
    assert says in str(error.value)


def test_fixed_decimals_leave_two_digits_at_least() -> None:
    assert [shaped(value, ".2f") for value in (19.381, 0.64, 0.1, 0.0887, 0.0104, 0.0)] == [
        "19.38",
        "0.64",
        "0.10",
        "0.089",
        "0.010",
        "0.00",
    ]
    assert shaped(0.004, "+.2%") == "+0.40%"
    assert shaped(7.31, ".0f") == "7.3"


@given(st.floats(min_value=1e-9, max_value=1e9), st.integers(min_value=0, max_value=3))
def test_a_shown_figure_is_within_five_per_cent_of_itself(value: float, decimals: int) -> None:
    assert abs(float(shaped(value, f".{decimals}f")) / value - 1) <= 0.05 + 1e-9


@given(
    st.integers(min_value=1, max_value=2000),
    st.integers(min_value=1, max_value=2000),
    st.integers(min_value=2, max_value=500),
    st.floats(min_value=0.01, max_value=1e4),
    st.floats(min_value=0.01, max_value=1e4),
)
def test_throughput_times_latency_is_the_tokens(batch: int, length: int, new: int, prefill: float, step: float) -> None:
    said = Quantities(batch_size=batch, sequence_length=length, decode_length=new, steps=new - 1, prefill_ms=prefill, decode_token_ms=step)
    of = {name: figure.of(said) for name, figure in FIGURES.items()}
    latency, throughput, each = of["latency"], of["throughput"], of["ms_per_token"]
    assert latency is not None
    assert throughput is not None
    assert each is not None
    assert latency * throughput == pytest.approx(batch * new)
    assert each * batch * new == pytest.approx(latency * 1e3)
    assert of["decode_total_ms"] == pytest.approx((new - 1) * step)
    assert of["prompt_throughput"] == pytest.approx((of["prefill_throughput"] or 0) * length)


def test_a_forward_s_throughput_counts_prompt_tokens() -> None:
    said = Quantities(batch_size=16, sequence_length=1024, decode_length=None, steps=0, forward_ms=693.77)
    assert find_figure("throughput").of(said) == pytest.approx(23616, abs=0.5)
    assert find_figure("prefill_ms").of(said) is None


def test_what_binds_a_whole_is_what_binds_its_longer_phase() -> None:
    binds = {"prefill_ms": "compute", "decode_token_ms": "memory"}
    said = Quantities(batch_size=1, sequence_length=8, decode_length=5, steps=4, prefill_ms=9.0, decode_token_ms=2.0, binds=binds)
    assert limit(find_figure("latency"), said) == "compute"
    assert limit(find_figure("decode_ms"), said) == "memory"
    assert limit(find_figure("prefill_throughput"), said) == "compute"


def test_steps_over_a_context_have_no_prompt_and_no_whole() -> None:
    said = Quantities(batch_size=2, sequence_length=9, decode_length=4, steps=4, decode_token_ms=3.0)
    assert find_figure("decode_total_ms").of(said) == 12.0
    assert find_figure("decode_throughput").of(said) == pytest.approx(2 / 3e-3)
    assert find_figure("latency").of(said) is None
    assert find_figure("throughput").of(said) is None
