"""What counts as a change, and what a comparison says of cases that have no counterpart."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from report_records import made

from inferometer.bench.records.record import PeakMemory, Record
from inferometer.report.compare.comparison import compare
from inferometer.report.compare.document import comparison_parts, rows_csv
from inferometer.report.markup.parts import written
from inferometer.report.records.columns import Columns

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def slower(record_samples: list[float], factor: float) -> list[float]:
    return [factor * sample for sample in record_samples]


def words(old: list[Record], new: list[Record]) -> str:
    return written(comparison_parts(compare(old, new), Columns.of([*old, *new]), title="old against new"), "md")


def test_equal_records_did_not_change() -> None:
    records = [made(STEADY, STEADY, batch_size=size) for size in (1, 2, 4)]
    found = compare(records, records)
    assert not found.regressed
    assert [change.verdict for change in found.changes] == ["alike"] * 6
    assert (found.added, found.missing, found.ended) == ((), (), ())


def test_a_time_beyond_its_spread_is_a_regression_and_comes_first() -> None:
    old = [made(STEADY, STEADY, batch_size=size) for size in (1, 2, 4)]
    new = [*old[:2], made(STEADY, slower(STEADY, 1.1), batch_size=4)]
    found = compare(old, new)
    assert found.regressed
    assert [(c.figure, c.new.batch_size, c.verdict) for c in found.changes][:1] == [("decode_token_ms", 4, "slower")]
    assert [change.verdict for change in found.changes].count("alike") == 5
    assert compare(new, old).regressed is False
    assert compare(new, old).changes[0].verdict == "faster"


def test_a_change_within_the_spread_is_none() -> None:
    noisy = [100.0, 130.0, 80.0, 115.0, 95.0]
    old, new = [made(noisy, noisy)], [made(slower(noisy, 1.08), slower(noisy, 1.08))]
    assert not compare(old, new).regressed


def test_a_sure_but_tiny_change_is_none_until_the_tolerance_is_lowered() -> None:
    old, new = [made([100.0] * 5, [100.0] * 5)], [made([101.0] * 5, [101.0] * 5)]
    assert not compare(old, new).regressed
    assert compare(old, new, tolerance=0.005).regressed


def test_two_runs_a_side_still_show_what_is_plain() -> None:
    assert compare([made([10.0, 12.0], [5.0, 5.2])], [made([20.0, 24.0], [10.0, 10.4])]).regressed


def test_single_runs_must_differ_by_a_quarter() -> None:
    assert not compare([made([100.0], [10.0])], [made([120.0], [12.0])]).regressed
    assert compare([made([100.0], [10.0])], [made([130.0], [13.0])]).regressed


def test_of_many_cases_that_only_scatter_none_is_a_regression() -> None:
    import random

    draw = random.Random(11)
    sides = [[made(*([10 * draw.gauss(1, 0.03) for _ in range(5)] for _ in range(2)), batch_size=n + 1) for n in range(100)] for _ in "ab"]
    found = compare(*sides)
    assert sum(change.verdict != "alike" for change in found.changes) <= 2


def test_a_case_that_fails_now_is_a_regression_and_one_that_was_skipped_is_not() -> None:
    old = [made(STEADY, STEADY), made(STEADY, STEADY, batch_size=2), made(batch_size=4, status="oom", evidence="2 GiB short")]
    oom = made(batch_size=2, status="oom", evidence="OutOfMemoryError: 3 GiB short")
    found = compare(old, [old[0], oom, made(STEADY, STEADY, batch_size=4)])
    assert found.regressed
    assert [(a.status, b.status) for a, b in found.ended] == [("ok", "oom"), ("oom", "ok")]
    assert [b.batch_size for _, b in found.broken] == [2]
    skipped = made(batch_size=2, status="skipped", evidence="hf is not installed")
    assert not compare(old[:2], [old[0], skipped]).regressed
    assert "OutOfMemoryError: 3 GiB short" in words(old, [old[0], oom])


def test_new_and_missing_cases_are_listed_and_are_no_regression() -> None:
    old, new = [made(STEADY, STEADY), made(STEADY, STEADY, batch_size=2)], [made(STEADY, STEADY), made(STEADY, STEADY, batch_size=8)]
    found = compare(old, new)
    assert ([r.batch_size for r in found.added], [r.batch_size for r in found.missing], found.regressed) == ([8], [2], False)
    text = words(old, new)
    assert "## New" in text
    assert "## Missing" in text
    assert "batch 8" in text


def test_memory_that_grew_is_a_regression() -> None:
    old = made(STEADY, STEADY, peak_memory_bytes=PeakMemory(allocated=10 << 30))
    same, more = (replace(old, peak_memory_bytes=PeakMemory(allocated=size << 28)) for size in (41, 44))
    assert not compare([old], [same]).regressed
    found = compare([old], [more])
    assert (found.regressed, found.changes[0].figure, found.changes[0].verdict) == (True, "peak_memory_bytes", "more")


def test_a_whole_run_is_compared_where_nothing_else_is() -> None:
    old, new = (made(total=[factor * s for s in STEADY], admission="diagonal", group_size=8) for factor in (1.0, 1.5))
    assert [(c.figure, c.verdict) for c in compare([old], [new]).changes] == [("total_ms", "slower")]
    whole = compare([made(STEADY, STEADY)], [made(STEADY, STEADY)])
    assert {change.figure for change in whole.changes} == {"prefill_ms", "decode_token_ms"}


def test_machines_are_compared_and_a_case_measured_twice_counts_as_its_latest() -> None:
    old = [made(STEADY, STEADY, device_name="one card")]
    new = [
        made(slower(STEADY, 0.5), slower(STEADY, 0.5), device_name="another", started_at="2026-01-03T00:00:00+00:00"),
        made(slower(STEADY, 3), slower(STEADY, 3), device_name="another", started_at="2026-01-02T00:00:00+00:00"),
    ]
    found = compare(old, new)
    assert {change.verdict for change in found.changes} == {"faster"}
    assert not found.added


def test_the_document_says_the_verdict_the_ratio_and_the_rule() -> None:
    text = words([made(STEADY, STEADY)], [made(STEADY, slower(STEADY, 1.2))])
    assert "Regressed. 2 times compared: 1 slower, 0 faster, 1 alike" in text
    assert "| slower  |" in text
    assert "1.200" in text
    assert "Welch" in text
    assert "2 %" in text


def test_values_of_a_comparison() -> None:
    old = [made(STEADY, STEADY), made(STEADY, STEADY, batch_size=2)]
    new = [made(STEADY, slower(STEADY, 1.2)), made(batch_size=2, status="oom", evidence="x"), made(STEADY, STEADY, batch_size=3)]
    rows = list(csv.DictReader(io.StringIO(rows_csv(compare(old, new), Columns.of(new)))))
    assert [row["verdict"] for row in rows] == ["slower", "alike", "ok to oom", "new"]
    assert float(rows[0]["ratio"]) == 1.2
    assert float(rows[0]["low"]) < 1.2 < float(rows[0]["high"])
    assert float(rows[0]["chance"]) < 1e-6
