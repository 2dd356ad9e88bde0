"""The validation page: what stands in its tables, and that a reader can tell counted rows from others."""

from __future__ import annotations

import csv
import io
import json

from validation_reports import reports

from inferometer.estimate.deviation import Deviation
from inferometer.estimate.explanation import Sum, explain
from inferometer.estimate.measured.operation import Operation
from inferometer.estimate.operations import Series, Timed
from inferometer.report.estimates.validation import (
    document,
    explanation_table,
    legend,
    operation_table,
    regime_table,
    row_table,
    rows_csv,
    to_json,
    verdict,
)


def _cells(table: str) -> dict[str, dict[str, str]]:
    """By the first column's cell, each row as {header: cell}."""
    lines = [
        [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_a_regime_stands_with_its_error_its_gate_and_the_verdict() -> None:
    found = _cells(regime_table(reports()))
    assert found["first"]["Held out"] == "2 of 3"
    assert found["first"]["Mean"] == found["first"]["Worst"] == "25.0 %"
    assert found["first"]["Gate"] == "10 %, worst 30 %"
    assert found["first"]["Stretch"] == "5 %"
    assert found["first"]["Verdict"] == "missed"
    assert found["first"]["Published"] == "8 % in sample"
    assert found["first"]["Peak roofline"].endswith("%")
    assert (found["second"]["Mean"], found["second"]["Verdict"], found["second"]["Weights + cache"][-1]) == ("-", "informs", "%")
    assert verdict(reports(0.05)[0]) == "holds"


def test_small_errors_keep_their_digits() -> None:
    assert _cells(regime_table(reports(0.0023)))["first"]["Mean"] == "0.23 %"


def test_rows_say_which_are_fitted_and_what_is_wrong_with_them() -> None:
    found = _cells(row_table(reports()[0]))
    assert found["a"]["Note"] == "fitted"
    assert found["b"]["Note"] == "a known defect"
    assert found["c"]["Note"] == ""
    assert (found["b"]["Measured (ms)"], found["b"]["Predicted (ms)"], found["b"]["Error"]) == ("20", "25", "+25.0 %")
    assert "Sources: a page" in row_table(reports()[0])


def test_missing_predictions_are_counted() -> None:
    assert "second: 1 held-out rows have no prediction (peak_gib in mode prefill is not modelled)" in legend(reports())


def test_the_page_holds_every_regime() -> None:
    page = document(reports())
    assert page.startswith("# Validation\n")
    assert "## first: First things" in page
    assert "## second: Second things" in page


def test_csv_has_every_row_once_and_marks_what_counts() -> None:
    found = list(csv.DictReader(io.StringIO(rows_csv(reports()))))
    assert [(line["regime"], line["row"], line["held_out"]) for line in found] == [
        ("first", "a", "no"),
        ("first", "b", "yes"),
        ("first", "c", "yes"),
        ("second", "m", "yes"),
    ]
    assert float(found[1]["inferometer"]) == 25.0
    assert found[3]["inferometer"] == ""


def test_json_has_errors_by_method_and_rows_on_request() -> None:
    whole = json.loads(json.dumps(to_json(reports(), rows=True), allow_nan=False))
    first, second = whole["regimes"]
    assert first["errors"]["inferometer"] == {
        "rows": 2,
        "mean": 0.25,
        "worst": 0.25,
        "worst_row": "b",
        "low": 0.8,
        "high": 0.8,
    }
    assert (first["holds"], second["holds"], second["missing"]) == (False, None, 1)
    assert [line["fitted"] for line in first["rows"]] == [True, False, False]
    assert "rows" not in to_json(reports(), rows=False)["regimes"][0]


def test_a_missed_gate_is_explained_op_by_op() -> None:
    parts = [Sum("up", 12.0, 9.0, "tensor"), Sum("3 others", 4.0, 1.0, "")]
    explained = explain(reports(), op_times=lambda row, constants: parts, fits={})
    page = document(reports(), explained=explained)
    assert "## Missed gates, op by op" in page
    assert "first, b: measured 20 ms, predicted 25 ms (+25.0 %)." in page
    assert "Known of the row: a known defect" in page
    assert _cells(explanation_table(explained[0]))["up"] == {
        "Op": "up",
        "Expected (ms)": "12",
        "Share": "75 %",
        "Bound (ms)": "9",
        "Binds": "tensor",
    }


def test_single_operations_stand_beside_the_roofline() -> None:
    operation = Operation(
        set="product", kind="product", device="t4", gpus=1, link=None, captured=True, dtype="float16", shape=(1, 2, 3), us=4.0, source="x"
    )
    series = Series(
        name="product",
        timed=(Timed(operation=operation, expected_us=5.0, bound_us=2.0),),
        expected=Deviation.of([("1 x 2 x 3", 4.0, 5.0)]),
        bound=Deviation.of([("1 x 2 x 3", 4.0, 2.0)]),
    )
    found = _cells(operation_table([series]))["product"]
    assert (found["Operations"], found["Mean"], found["Worst operation"], found["Peak roofline"]) == ("1", "25.0 %", "1 x 2 x 3", "50.0 %")
