"""A study's tables: what stands where, and what stands in place of a figure that there is none of."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import HERE, ran, study_of
from study_documents import SWEEP, TABLE, cells, lines, pair

from inferometer.report.study.tables import document


def test_a_grid_to_the_letter() -> None:
    study = study_of(SWEEP + TABLE)
    records = [
        ran("old", prefill=[10.0, 10.0], token=[10.0, 10.0], backend="hf"),
        ran("new", prefill=[5.0, 5.0], token=[5.0, 5.0]),
        ran("old", prefill=[10.0, 10.0], token=[10.0, 10.0], batch_size=2, backend="hf"),
        ran("new", batch_size=2, status="oom", evidence="out of memory: 5 of 3 pages"),
    ]
    assert "\n".join(lines(document(study, records), "| batch_size")) == (
        "| batch_size | old             | new            |\n"
        "|------------|-----------------|----------------|\n"
        "| 1          | 100.00 \\| 10.00 | 200.00 \\| 5.00 |\n"
        "| 2          | 200.00 \\| 5.00  | oom [1]        |"
    )
    assert "- [1] oom: out of memory: 5 of 3 pages (new, batch_size 2)." in document(study, records)


def test_rows_stand_in_the_study_s_order_whatever_the_records_order() -> None:
    study = study_of(SWEEP + TABLE)
    records = [ran("new", prefill=[1.0], token=[1.0], batch_size=size) for size in (4, 1, 2)]
    assert [row[0] for row in cells(document(study, records), "| batch_size")] == ["1", "2", "4"]


def test_a_later_record_of_a_case_counts() -> None:
    study = study_of(SWEEP + TABLE)
    first, again = (ran("new", prefill=[ms], token=[ms]) for ms in (10.0, 5.0))
    assert first.case_id == again.case_id
    assert cells(document(study, [first, again]), "| batch_size") == [["1", "200.00 \\| 5.00"]]


def test_what_has_no_figure_says_why() -> None:
    text = SWEEP.replace(
        "axes = { batch_size = [1, 2, 4] }",
        'axes = { batch_size = [1, 2, 4] }\nexclude = [{ column = "old", batch_size = 4, reason = "takes an hour" }]',
    )
    study = study_of(text + TABLE)
    records = [
        ran("old", status="skipped", evidence="hf needs transformers: pip install transformers", backend="hf"),
        ran("old", batch_size=2, status="timeout", evidence="still running after 60 s", backend="hf"),
        ran("new", batch_size=2, status="error", evidence="killed by signal 9"),
        ran("new", batch_size=4, prefill=[5.0], token=[5.0]),
    ]
    made = document(study, records)
    assert cells(made, "| batch_size") == [
        ["1", "skipped [1]", ""],
        ["2", "timeout [2]", "error [3]"],
        ["4", "skipped [4]", "800.00 \\| 1.25"],
    ]
    for note in (
        "[1] skipped: hf needs transformers: pip install transformers (old, batch_size 1).",
        "[2] timeout: still running after 60 s (old, batch_size 2).",
        "[3] error: killed by signal 9 (new, batch_size 2).",
        "[4] skipped: takes an hour (old, batch_size 4).",
    ):
        assert f"- {note}" in made


def test_messages_that_differ_in_numbers_are_one_note() -> None:
    study = study_of(SWEEP + TABLE)
    records = [ran("new", batch_size=size, status="oom", evidence=f"Tried to allocate {size}.50 GiB.") for size in (1, 2, 4)]
    made = document(study, records)
    assert cells(made, "| batch_size") == [["1", "oom [1]"], ["2", "oom [1]"], ["4", "oom [1]"]]
    assert "- [1] oom: Tried to allocate 1.50 GiB (new, batch_size 1, the first of 3 cells alike)." in made


def test_a_mean_of_runs_far_apart_says_so() -> None:
    """Two runs of which one met something else are no 150 ms each, and a table of means alone would say that they are."""
    study = study_of(SWEEP + TABLE)
    records = [
        ran("old", prefill=[10.0, 10.0], token=[10.0, 30.0], backend="hf"),
        ran("new", prefill=[5.0, 5.0], token=[5.0, 5.5]),
        ran("new", prefill=[5.0, 7.0], token=[5.0, 7.0], batch_size=2),
    ]
    made = document(study, records)
    assert cells(made, "| batch_size") == [["1", "69.23 \\| 18.00 [1]", "192.59 \\| 5.20"], ["2", "", "342.86 \\| 3.00 [1]"]]
    assert "- [1] a mean of 2 runs that lie from 38.46 to 100.00 (old, batch_size 1, the first of 2 cells alike)." in made


def test_requests_to_a_server_differ_without_a_word() -> None:
    study = study_of(SWEEP + TABLE.replace('"{throughput:.2f} | {ms_per_token:.2f}"', '"ttft_ms"'))
    times = {"samples": [5.0, 15.0], "mean": 10.0, "min": 5.0, "max": 15.0, "p50": 5.0, "p90": 15.0, "p99": 15.0}
    serving = {"ttft": times, "served": 2, "failed": 0}
    made = document(study, [ran("old", backend="http", requests=2, serving=serving)])
    assert cells(made, "| batch_size") == [["1", "10.00"]]
    assert "lie from" not in made


def test_a_bound_by_other_limits_than_its_neighbours_is_marked() -> None:
    study = study_of(SWEEP + TABLE.replace("beside = []", 'beside = ["bound"]'))
    bounds = [
        {"prefill_ms": 1.0, "decode_token_ms": 1.0, "binds": {"decode_token_ms": "memory"}, "basis": basis}
        for basis in ("calibrated", "datasheet")
    ]
    one, other = (ran(name, prefill=[2.0], token=[2.0], bound=bound) for name, bound in zip(("old", "new"), bounds, strict=True))
    made = document(study, [one, other])
    assert "The least that this device needs (calibrated and datasheet limits)." in made
    assert "1000.00 \\| 1.00 (50%, memory) | 1000.00 \\| 1.00 (50%, memory) [1]" in made
    assert "- [1] by datasheet limits: nothing was calibrated where it ran (new, batch_size 1)." in made
    assert "[1]" not in document(study, [one, replace(other, bound=one.bound)])


def test_a_predicted_time_that_launches_decide_says_so() -> None:
    """A stack at 3 % of its bound does not wait for the memory, whatever the bound is made of."""
    study = study_of(SWEEP + TABLE.replace("beside = []", 'beside = ["predicted"]'))
    here: dict[str, Any] = {"model": "opt-125m", "device": "h200", "dtype": "float16", "prefill": [7.0], "token": [7.0]}
    made = document(study, [ran("old", backend="hf", **here), ran("new", backend="native", batch_size=4, **here)])
    _, table = made.split("Predicted for the same device. In brackets: measured over predicted.")
    (one, four), (note,) = cells(table, "| batch_size"), [line for line in table.splitlines() if "sets the pace" in line]
    assert one[1].endswith(") [1]")
    assert "[" not in four[2]
    assert re.fullmatch(r"- \[1\] the host sets the pace: \d\S* ms of its own a step, for 0\.\d+ ms of work \(old, batch_size 1\)\.", note)


def test_a_table_says_which_session_measured_which_column_and_when() -> None:
    late = {"environment": {**HERE, "session": "b"}, "started_at": "2026-01-02T10:30:59.000+00:00"}
    records = [ran("new", prefill=[1.0], token=[1.0], **late), ran("old", prefill=[1.0], token=[1.0], backend="hf")]
    made = document(study_of(SWEEP + TABLE), records)
    assert "This table mixes 2 sessions (one of 2026-01-01 00:00: old; b of 2026-01-02 10:30: new): ratios" in made
    assert "session b, revision 1.0, 2026-01-02 10:30.\n" in made


def test_a_table_may_have_words_of_its_own() -> None:
    study = study_of(SWEEP + TABLE + 'words = { oom = "-", missing = "?" }\n')
    made = document(study, [ran("new", status="oom", evidence="full"), ran("old", prefill=[1.0], token=[1.0], batch_size=2)])
    assert cells(made, "| batch_size") == [["1", "?", "- [1]"], ["2", "2000.00 \\| 0.50", "?"]]


def test_evidence_cannot_break_the_table_or_become_markup() -> None:
    study = study_of(SWEEP + TABLE)
    made = document(study, [ran("new", status="error", evidence="a | b\n# <b>_x_</b> `c` [d](e)")])
    assert cells(made, "| batch_size") == [["1", "error [1]"]]
    assert "- [1] error: a | b # \\<b>\\_x\\_\\</b> \\`c\\` [d\\](e) (new, batch_size 1)." in made


def test_two_cases_in_one_cell_are_not_one_figure() -> None:
    study = study_of(SWEEP + TABLE)
    made = document(study, [ran("new", prefill=[1.0], token=[1.0], sequence_length=size) for size in (8, 16)])
    assert cells(made, "| batch_size") == [["1", "several [1]"]]
    assert "2 cases fall into one cell: name in rows, columns or where what tells them apart, which is sequence_length (" in made


def test_a_table_without_records_is_named_and_not_shown() -> None:
    made = document(study_of(SWEEP + TABLE), [])
    assert "## Tables without records\n\n- Throughput (tokens/sec | msec/token)" in made
    assert "| batch_size" not in made


def test_tables_that_a_setting_splits_are_named_once_with_the_values_asked_for() -> None:
    split = TABLE.replace(
        'title = "Throughput (tokens/sec | msec/token)"',
        'each = ["batch_size", "column", "device_name"]\ntitle = "{column} of {batch_size} on {device_name}"',
    )
    made = document(study_of(SWEEP + split + split), [])
    assert made.count("{") == 0
    assert made.count("- old / new of 1 / 2 / 4 on ...") == 1


RATIO = """
[[table]]
part = "sweep"
title = "Scale"
rows = "batch_size"
columns = [{ heading = "scale", ratio = ["new", "old"] }]
cell = "{throughput:.3f}"
best = "high"
beside = []
"""


def test_ratios_with_the_best_in_bold() -> None:
    made = document(study_of(SWEEP + RATIO), [*pair(1, old=10, new=5), *pair(2, old=10, new=4), *pair(4, old=10, new=20)])
    assert cells(made, "| batch_size | scale") == [["1", "2.000"], ["2", "**2.500**"], ["4", "0.500"]]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"environment": {**HERE, "session": "two"}}, "in different sessions (two; one)"),
        ({"environment": {**HERE, "inferometer": "1.1"}}, "at different revisions (1.1; 1.0)"),
        ({"device_name": "NVIDIA A100"}, "on different machines (NVIDIA A100, a processor; NVIDIA H100 80GB HBM3, a processor)"),
    ],
)
def test_no_ratio_of_what_was_measured_apart(changes: dict[str, Any], why: str) -> None:
    made = document(study_of(SWEEP + RATIO), [*pair(1, old=10, new=5, **changes), *pair(2, old=10, new=4)])
    assert cells(made, "| batch_size | scale") == [["1", "- [1]"], ["2", "**2.500**"]]
    assert f"[1] no ratio: new and old were measured {why} (scale, batch_size 1)." in made
    assert "This table mixes 2" in made


def test_a_ratio_with_one_side_missing_is_none() -> None:
    records = [pair(1, old=10, new=5)[1], ran("old", status="oom", evidence="full", backend="hf"), pair(2, old=10, new=5)[0]]
    made = document(study_of(SWEEP + RATIO), records)
    assert cells(made, "| batch_size | scale") == [["1", "-"], ["2", "-"]]
    assert "no ratio" not in made
    # What could not run somewhere else was not measured there.
    skipped = ran("old", status="skipped", evidence="no package", backend="hf", environment={"session": "two"})
    made = document(study_of(SWEEP + RATIO), [pair(1, old=10, new=5)[1], skipped])
    assert cells(made, "| batch_size | scale") == [["1", "-"]]
    assert "no ratio" not in made


AXES: dict[str, tuple[Any, ...]] = {"batch_size": (1, 2, 3), "sequence_length": (8, 16, 32), "column": ("a", "b", "c")}


@settings(max_examples=60, deadline=None)
@given(
    st.permutations(list(AXES)),
    st.lists(st.tuples(*(st.sampled_from(values) for values in AXES.values())), min_size=1, unique=True),
)
def test_no_figure_stands_in_another_cell(order: list[str], cases: list[tuple[int, int, str]]) -> None:
    """Each case has a latency that names it; wherever rows and columns put it, it stands under its own labels, once."""
    *rows, across = order
    listed = ", ".join(f'"{axis}"' for axis in rows)
    columns = ", ".join(f'{{ name = "{name}", backend = "native" }}' for name in AXES["column"])
    study = study_of(
        f'''
[fixed]
model = "opt-125m"
decode_length = 5
[[part]]
name = "sweep"
axes = {{ batch_size = [1, 2, 3], sequence_length = [8, 16, 32] }}
columns = [{columns}]
[[table]]
part = "sweep"
title = "T"
rows = [{listed}]
columns = "{across}"
cell = "{{total_ms:.0f}}"
beside = []
'''
    )
    named = {case: 1000 * case[0] + 10 * case[1] + "abc".index(case[2]) for case in cases}
    records = [
        ran(name, total=[float(ms)], batch_size=batch, sequence_length=length, admission="zigzag", group_size=1, num_groups=batch)
        for (batch, length, name), ms in named.items()
    ]
    table = lines(document(study, records), "| " + rows[0])
    heading, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    found = {}
    for line in body:
        for label, cell in zip(heading[2:], line[2:], strict=True):
            if cell:
                labels = {**dict(zip(rows, line[:2], strict=True)), across: label}
                found[int(labels["batch_size"]), int(labels["sequence_length"]), labels["column"]] = int(cell)
    assert found == named
