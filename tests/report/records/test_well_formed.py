"""Records with anything in any place: named by their field, or fit for every report."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_records import made
from sweep_records import case, sweep

from inferometer.bench.records.well_formed import check
from inferometer.errors import UserError
from inferometer.report.compare.comparison import compare
from inferometer.report.compare.document import comparison_parts, rows_csv
from inferometer.report.markup.parts import written
from inferometer.report.page.page import page
from inferometer.report.records.columns import Columns
from inferometer.report.records.gathering import gather
from inferometer.report.records.record_rows import records_csv
from inferometer.report.tables.summary import summary_parts

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.sampled_from([0, -1, 1e-320, 1e308, "2026-01-01", "timeout", "cpu", "h100-sxm", "../x"]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON value could be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path, *(place for key, each in items for place in places(each, (*path, key)))]
        if path
        else [place for key, each in items for place in places(each, (key,))]
    )


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return found


def test_records_as_they_are_made_are_well_formed() -> None:
    for record in [*sweep(batches=(1, 512), energy=True), made([1.0], [2.0]), made(forward=[1.0], decode_length=None)]:
        check(record)


@pytest.mark.parametrize(
    ("path", "to", "words"),
    [
        (("bound", "decode_token_ms"), "fast", "bound.decode_token_ms is 'fast'"),
        (("predicted", "interval", "prefill_ms"), [1.0], "predicted.interval.prefill_ms is (1.0,)"),
        (("predicted", "peak_memory_bytes"), 1.5, "predicted.peak_memory_bytes is 1.5"),
        (("energy", "j_per_token"), "much", "energy.j_per_token is 'much'"),
        (("environment",), [], "environment is [], not names with values"),
        (("environment", "gpu_memory_bytes"), 10**400, "environment.gpu_memory_bytes is 1000"),
        (("environment", "sensors"), {"gpu_temperature_c": {"value": [10**400]}}, "environment.sensors.gpu_temperature_c.value is 1000"),
        (("batch_size",), True, "batch_size"),
        (("model",), 7, "model is 7"),
        (("started_at",), None, "started_at is None"),
    ],
)
def test_a_field_that_holds_something_else_is_named(tmp_path: Path, path: tuple[str, ...], to: Any, words: str) -> None:
    (tmp_path / "a").write_text(json.dumps(changed(case(energy=True).to_json(), path, to)))
    with pytest.raises(UserError, match="line 1") as caught:
        gather([tmp_path / "a"])
    assert words in str(caught.value)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_read_can_be_reported_in_every_form(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [record.to_json() for record in sweep(batches=(1, 2), energy=True)]
    for _ in range(data.draw(st.integers(1, 3))):
        chosen = data.draw(st.integers(0, len(lines) - 1))
        lines[chosen] = changed(lines[chosen], data.draw(st.sampled_from(places(lines[chosen]))), data.draw(ANYTHING))
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_text("\n".join(map(json.dumps, lines)))
    try:
        records = gather([path]).records
    except UserError:
        return
    plain = sweep(batches=(1, 2))
    written(summary_parts(records, title="t"), "md")
    written(summary_parts(records, title="t"), "rst")
    records_csv(records)
    assert page(records, title="t").startswith("<!doctype html>")
    found, columns = compare(plain, records), Columns.of([*plain, *records], by_machine=False)
    written(comparison_parts(found, columns, title="t"), "md")
    rows_csv(found, columns)
