"""Served cases on the page, in tables and in comparisons: by their `serving`, whatever else a record of them has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from report_records import made

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary
from inferometer.bench.records.well_formed import check
from inferometer.report.compare.comparison import Change, served_ms
from inferometer.report.compare.difference import Difference
from inferometer.report.compare.document import row
from inferometer.report.page.serving_figures import load, pair, serving_section
from inferometer.report.records.columns import Columns, effort


def served(factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """What a load client measured of four requests, a fifth of which failed."""
    times = {name: asdict(Summary.of(factor * ms for ms in samples)) for name, samples in SAMPLES.items()}
    rates = {"requests_s": 3.5, "output_tok_s": 112.0 / factor, "goodput": None, "served": 4, "failed": 1}
    return {**times, **rates, "notes": ["the client <took> 90% of a core"], **changes}


SAMPLES = {
    "ttft": (20.0, 22.0, 24.0, 90.0),
    "tpot": (5.0, 5.5, 6.0, 7.0),
    "e2e": (180.0, 190.0, 200.0, 300.0),
    "itl": (5.0, 5.0, 6.0, 40.0),
}


def of(records: list[Record]) -> str:
    section = serving_section(records, Columns.of(records))
    return "" if section is None else section.html()


class Served(Record):
    """A record of a server's case as far as reports look at it."""

    def __init__(self, size: int, factor: float = 1.0, **changes: Any) -> None:
        plain = made(status="skipped", evidence="measured by requests", batch_size=size, decode_length=32, backend="http")
        for name in Record.__dataclass_fields__:
            object.__setattr__(self, name, getattr(plain, name))
        object.__setattr__(self, "status", "ok")
        object.__setattr__(self, "serving", served(factor, **changes))


def test_its_effort_is_in_requests() -> None:
    records = [made(status="skipped", evidence="no server", backend="http", requests=count) for count in (6, 6, 60)]
    assert effort(records[:2]).split("; ")[0] == "6 requests a load"
    assert effort(records).split("; ")[0] == "6 to 60 requests a load"
    assert effort([made([1.0, 1.0], [1.0, 1.0])]).startswith("2 runs after")


def test_notes_that_are_no_list_are_named() -> None:
    with pytest.raises(ValueError, match=r"serving\.notes is True, not a list"):
        check(Served(1, notes=True))


def test_no_server_no_section() -> None:
    assert serving_section([made([1.0], [1.0])], Columns.of([made([1.0], [1.0])])) is None


def test_times_and_rates_stand_against_the_load() -> None:
    text = of([Served(1), Served(4, 1.5), Served(16, 3.0)])
    for title in ("Time to the first token", "Time an output token", "Whole request", "Throughput"):
        assert f"<figcaption>{title}</figcaption>" in text
    assert "Goodput</figcaption>" not in text  # no SLO was set
    assert "<title>4 concurrent requests: 33 ms (p99 135 ms)</title>" in text
    assert "22 / 90" in text
    assert "the client &lt;took&gt; 90% of a core" in text


def test_one_load_is_a_table_without_charts() -> None:
    text = of([Served(4)])
    assert "<figure>" not in text
    assert "<td>4<td>1<td>22 / 90" in text


def test_what_is_not_known_is_a_dash() -> None:
    text = of([Served(4, itl=None, tpot=None, output_tok_s=None)])
    assert text.count("<td>-") == 4


def test_the_load_is_a_number_at_a_time_unless_a_rate_was_asked_for() -> None:
    assert load(Served(4)) == ("concurrent requests", 4.0)
    assert pair(None) == "-"


def test_a_comparison_shows_medians_of_requests() -> None:
    old, new = Served(4), Served(4, 2.0)
    assert (served_ms(old, "ttft"), served_ms(new, "ttft"), served_ms(made([1.0], [1.0]), "ttft")) == (22.0, 44.0, None)
    seen = Difference(ratio=2.0, interval=None, chance=None)
    change = Change(old=old, new=new, figure="ttft", verdict="slower", ratio=2.0, difference=seen)
    assert row(change, Columns.of([old]))[-5:] == ["first token, served", "22 ms", "44 ms", "2.000", "-"]
