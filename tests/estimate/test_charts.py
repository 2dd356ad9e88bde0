"""Published charts of quotients: named, with their source, and refused by name where there is none."""

from __future__ import annotations

import pytest

from inferometer.errors import UserError
from inferometer.estimate.measured import load_chart, load_charts


def test_every_series_has_values_and_a_source() -> None:
    charts = load_charts()
    assert len(charts) >= 6
    for chart in charts.values():
        assert chart.values
        assert all(value > 0 for value in chart.values.values())
        assert chart.source.startswith("Document 003: EET README, ")


def test_the_speed_up_over_baselines_without_a_prefill_grows_with_the_prompt() -> None:
    for name in ("003-a100-prompt-fairseq", "003-a100-prompt-fastertransformer"):
        values = load_chart(name).values
        assert [*values] == [str(128 * n) for n in range(1, 8)]
        assert [*values.values()] == sorted(values.values())


def test_an_unknown_series_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"chart a chart is unknown; the charts are 003-a100-prompt-fairseq, "):
        load_chart("a chart")
