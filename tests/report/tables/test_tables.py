from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import UNSET, made

from inferometer.bench.records.record import Bound, Checked, Predicted, Record
from inferometer.report.markup.parts import written
from inferometer.report.page.case_table import cases_section
from inferometer.report.records.columns import Columns
from inferometer.report.tables.benchmark import comparison_table, document, latency_table, parameter_table, throughput_table
from inferometer.report.tables.benchmark_notes import notes
from inferometer.report.tables.summary import summary_parts


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if not line.startswith("|-")]


def test_the_parameters_in_their_published_shape() -> None:
    assert (
        parameter_table(made([1.0] * 10, [1.0] * 10))
        == """\
| Parameter          | Value                    |
|--------------------|--------------------------|
| Model              | bigscience/bloomz-7b1-mt |
| Sequence Length    | 1024                     |
| Decode Length      | 8                        |
| N Runs             | 10                       |
| Warmups            | 1                        |
| Temperature        | None                     |
| Top K              | None                     |
| Top P              | None                     |
| Typical P          | None                     |
| Repetition Penalty | None                     |
| Watermark          | false                    |
| Do Sample          | false                    |"""
    )


def test_parameters_that_were_given() -> None:
    table = parameter_table(made([1.0], [1.0], sampling={**UNSET, "temperature": 0.5, "top_k": 10, "do_sample": True}))
    rows = dict(cells(table)[1:])
    assert (rows["Temperature"], rows["Top K"], rows["Do Sample"]) == ("0.5", "10", "true")


def test_latency_in_its_published_shape() -> None:
    records = [made([139.0, 141.0], [28.5, 29.0]), made([1270.0, 1271.0], [35.0, 36.0], batch_size=32)]
    assert (
        latency_table(records)
        == """\
| Step           | Batch Size | Average    | Lowest     | Highest    | p50        | p90        | p99        |
|----------------|------------|------------|------------|------------|------------|------------|------------|
| Prefill        | 1          | 140.00 ms  | 139.00 ms  | 141.00 ms  | 139.00 ms  | 141.00 ms  | 141.00 ms  |
|                | 32         | 1270.50 ms | 1270.00 ms | 1271.00 ms | 1270.00 ms | 1271.00 ms | 1271.00 ms |
| Decode (token) | 1          | 28.75 ms   | 28.50 ms   | 29.00 ms   | 28.50 ms   | 29.00 ms   | 29.00 ms   |
|                | 32         | 35.50 ms   | 35.00 ms   | 36.00 ms   | 35.00 ms   | 36.00 ms   | 36.00 ms   |
| Decode (total) | 1          | 201.25 ms  | 199.50 ms  | 203.00 ms  | 199.50 ms  | 203.00 ms  | 203.00 ms  |
|                | 32         | 248.50 ms  | 245.00 ms  | 252.00 ms  | 245.00 ms  | 252.00 ms  | 252.00 ms  |"""
    )


def test_throughput_in_its_published_shape() -> None:
    records = [made([100.0, 200.0], [25.0, 20.0]), made([1000.0, 1000.0], [50.0, 50.0], batch_size=32)]
    assert (
        throughput_table(records)
        == """\
| Step    | Batch Size | Average            | Lowest             | Highest            |
|---------|------------|--------------------|--------------------|--------------------|
| Prefill | 1          | 7.50 tokens/secs   | 5.00 tokens/secs   | 10.00 tokens/secs  |
|         | 32         | 32.00 tokens/secs  | 32.00 tokens/secs  | 32.00 tokens/secs  |
| Decode  | 1          | 45.00 tokens/secs  | 40.00 tokens/secs  | 50.00 tokens/secs  |
|         | 32         | 640.00 tokens/secs | 640.00 tokens/secs | 640.00 tokens/secs |"""
    )


@given(st.lists(st.lists(st.floats(0.01, 1e5), min_size=3, max_size=3), min_size=1, max_size=6), st.booleans())
def test_percentiles_are_in_order_and_no_cell_but_the_step_is_blank(samples: list[list[float]], constant: bool) -> None:
    runs = [[s[0]] * 3 if constant else s for s in samples]
    records = [made(s, s, batch_size=i + 1) for i, s in enumerate(runs)]
    for row in cells(latency_table(records))[1:]:
        assert all(row[1:])
        _, low, high, p50, p90, p99 = (float(cell.removesuffix(" ms")) for cell in row[2:])
        assert low <= p50 <= p90 <= p99 <= high
    assert all(all(row[1:]) for row in cells(throughput_table(records)))


def test_a_batch_size_that_failed_is_a_row_that_says_so() -> None:
    records = [
        made([10.0], [2.0]),
        made(batch_size=2, status="oom", evidence="OutOfMemoryError: 9 GiB short"),
        made(batch_size=4, status="error", evidence="ValueError: no"),
        made([40.0], [8.0], batch_size=8),
    ]
    latency, rates = cells(latency_table(records)), cells(throughput_table(records))
    assert [row[1] for row in latency[1:]] == ["1", "2", "4", "8"] * 3
    assert [row[2:] for row in latency if row[1] == "2"] == [["OOM"] * 6] * 3
    assert [row[2:] for row in latency if row[1] == "4"] == [["error"] * 6] * 3
    assert [row[2:] for row in rates if row[1] == "2"] == [["OOM"] * 3] * 2
    assert "- native, batch size 2: OOM. OutOfMemoryError: 9 GiB short" in notes(records)


def test_the_first_batch_size_may_be_the_one_that_failed() -> None:
    records = [made(status="oom", evidence="x"), made([10.0], [2.0], batch_size=2)]
    assert [row[0] for row in cells(latency_table(records))[1:]] == ["Prefill", "", "Decode (token)", "", "Decode (total)", ""]


def test_decode_length_one_has_no_decode_rows() -> None:
    records = [made([10.0], decode_length=1), made(batch_size=2, decode_length=1, status="oom", evidence="x")]
    assert [row[0] for row in cells(latency_table(records))[1:]] == ["Prefill", ""]
    assert [row[0] for row in cells(throughput_table(records))[1:]] == ["Prefill", ""]
    assert "Decode (" not in notes(records)


def test_a_forward_alone() -> None:
    records = [made(forward=[512.0], decode_length=None)]
    assert cells(latency_table(records))[1][:3] == ["Forward", "1", "512.00 ms"]
    assert cells(throughput_table(records))[1][:3] == ["Forward", "1", "2000.00 tokens/secs"]
    assert "count prompt tokens" in notes(records)
    assert dict(cells(parameter_table(records[0]))[1:])["Decode Length"] == "None"


def test_what_is_faster_than_its_bound_is_told_with_the_remedy() -> None:
    slow, fast = (made([10.0], [2.0], bound=Bound(prefill_ms=5.0, decode_token_ms=ms, basis="calibrated")) for ms in (2.0, 4.0))
    assert "--calibrate" not in notes([slow])
    assert "- Above 100 % of bound" in notes([slow, fast])
    assert "calibrate again with `inferometer devices --calibrate --device cuda`." in notes([fast])


@pytest.mark.parametrize(("share", "told"), [(1.02, False), (1.03, True)])
def test_what_is_faster_than_its_bound_is_told_in_every_format(share: float, told: bool) -> None:
    record = made([10.0], [2.0], bound=Bound(prefill_ms=5.0, decode_token_ms=2.0 * share, basis="calibrated"), device="cpu")
    columns = Columns.of([record])
    command = "calibrate again with inferometer devices --calibrate --device cpu."
    for text in (*(written(summary_parts([record], title="t"), form) for form in ("md", "rst")), cases_section([record], columns).about):
        assert (command in " ".join((text or "").split())) == told
    assert (command.replace("inferometer", "`inferometer").replace("cpu.", "cpu`.") in notes([record])) == told


def test_limits_that_were_never_measured_are_not_calibrated_again() -> None:
    record = made([10.0], [2.0], bound=Bound(decode_token_ms=3.0, basis="datasheet"))
    assert "rests on (datasheet limits): calibrate with `inferometer devices --calibrate" in notes([record])


def test_a_run_whose_phases_share_sweeps_stands_beside_its_bound_and_prediction() -> None:
    bound, predicted = Bound(total_ms=10.0, binds={"total_ms": "compute"}, basis="calibrated"), Predicted(total_ms=30.0)
    record = made(total=[20.0], admission="diagonal", group_size=2, num_groups=1, bound=bound, predicted=predicted)
    header, row = cells(latency_table([record]))
    assert dict(zip(header, row, strict=True)) | {"% of bound": "50.0 %", "Binds": "compute", "Predicted": "30.00 ms (+50.0 %)"} == dict(
        zip(header, row, strict=True)
    )


def test_bound_and_prediction_are_columns_only_where_a_record_has_them() -> None:
    plain = made([10.0], [4.0], batch_size=2)
    bounded = made(
        [10.0],
        [4.0],
        bound=Bound(prefill_ms=5.0, decode_token_ms=3.0, binds={"prefill_ms": "compute", "decode_token_ms": "memory"}),
        predicted=Predicted(prefill_ms=9.0),
    )
    assert cells(latency_table([plain]))[0][-1] == "p99"
    table = cells(latency_table([bounded, plain]))
    assert table[0][-3:] == ["% of bound", "Binds", "Predicted"]
    assert [row[-3:] for row in table[1:]] == [
        ["50.0 %", "compute", "9.00 ms (-10.0 %)"],
        ["-", "-", "-"],
        ["75.0 %", "memory", "-"],
        ["-", "-", "-"],
        ["75.0 %", "memory", "-"],
        ["-", "-", "-"],
    ]


def test_backends_are_compared_where_both_ran() -> None:
    records = [
        made([10.0], [2.0]),
        made([30.0], [3.0], backend="hf"),
        made([20.0], [2.0], batch_size=2),
        made(batch_size=2, backend="hf", status="oom", evidence="x"),
    ]
    assert [row[-3:] for row in cells(comparison_table(records))[1:] if len(row) == 5][1:] == [
        ["100.00 tokens/secs", "33.33 tokens/secs", "3.00"],
        ["100.00 tokens/secs", "OOM", "-"],
        ["500.00 tokens/secs", "333.33 tokens/secs", "1.50"],
        ["1000.00 tokens/secs", "OOM", "-"],
    ]
    assert comparison_table(records[:1]) == ""


def test_the_document_has_tables_for_each_backend() -> None:
    records = [made([10.0], [2.0]), made([30.0], [3.0], backend="hf", stack_version="5.0 sdpa")]
    text = document(records)
    assert text.count("| Parameter") == 1
    assert text.count("| Step           | Batch Size |") == 2
    assert "## Backend: native (1.0)" in text
    assert "## Backend: hf (5.0 sdpa)" in text
    assert "native / hf" in text
    assert text.endswith("\n")
    alone = document(records[:1])
    assert "## " not in alone


def test_the_notes_tell_first_tokens_from_prompt_tokens_and_what_was_checked() -> None:
    checked = Checked(method="last-position logits against hf", max_error=2e-6, tolerance=1e-4, passed=True)
    text = notes([replace(made([10.0], [2.0]), checked=checked)])
    assert "first tokens, not prompt tokens" in text
    assert "prompt tokens/secs in prefill: 102400.00 at batch size 1" in text
    assert "last-position logits against hf: relative error 2.0e-06, at most 0.0001 allowed" in text


def test_launches_that_nobody_measured_are_told() -> None:
    """Where all were, or nothing was to be chosen, nothing is said."""
    record = made([10.0], [2.0])
    part = notes([replace(record, launches={"measured": 3, "maps": 5})])
    assert "launches measured for 3 of the 5 sizes of linear maps" in part
    for launches in (None, {"measured": 5, "maps": 5}):
        assert "launches" not in notes([replace(record, launches=launches)])


def test_nothing_is_no_report() -> None:
    with pytest.raises(ValueError, match="at least one"):
        document([])


def test_an_admission_is_told_and_has_a_total() -> None:
    phased = made([10.0], [2.0], admission="zigzag", group_size=8, pages_peak=12, page_size=16)
    assert [row[0] for row in cells(parameter_table(phased))[-3:]] == ["Admission", "Group Size", "Num Groups"]
    assert [row[1] for row in cells(parameter_table(phased))[-3:]] == ["zigzag", "8", "None"]
    assert [row[0] for row in cells(latency_table([phased]))[1:]] == ["Prefill", "Decode (token)", "Decode (total)", "Total"]
    assert [row[0] for row in cells(throughput_table([phased]))[1:]] == ["Prefill", "Decode", "Total"]
    text = notes([phased])
    assert "Total: from the first prompt to the last token" in text
    assert "as many forwards as they take" in text
    assert "peak of pages 12 (of 16 tokens)" in text


def test_prefill_and_decode_that_share_sweeps_are_one_row_group() -> None:
    records = [
        made(total=[100.0, 50.0], admission="diagonal", group_size=8),
        made(batch_size=2, admission="diagonal", group_size=8, status="oom", evidence="x"),
    ]
    bounded = replace(records[0], bound=Bound(basis="datasheet"), predicted=Predicted())
    assert [row[:3] for row in cells(latency_table(records))[1:]] == [["Total", "1", "75.00 ms"], ["", "2", "OOM"]]
    assert cells(latency_table([bounded]))[1][-3:] == ["-", "-", "-"]
    assert [row[:3] for row in cells(throughput_table(records))[1:]] == [["Total", "1", "120.00 tokens/secs"], ["", "2", "OOM"]]
    text = document(records)
    assert "some rows decoded while others were prefilled" in text
    assert "Prefill:" not in text
    assert "Decode (" not in text


def test_a_block_that_did_not_fit_as_a_whole_stands_beside_those_that_did() -> None:
    whole = made([10.0], [2.0], admission="zigzag", group_size=1)
    blocks = made(total=[50.0], batch_size=2, admission="zigzag", group_size=1)
    latency = cells(latency_table([whole, blocks]))
    assert [row[2] for row in latency if row[1] == "2"] == ["-", "-", "-", "50.00 ms"]
    assert [row[2] for row in cells(throughput_table([whole, blocks])) if row[1] == "2"] == ["-", "-", "320.00 tokens/secs"]


def test_a_note_names_times_that_are_expected_to_be_shorter_with_plain_weights() -> None:
    faster = {"decode_token_ms": 2.5, "prefill_ms": 123.456}
    slow = made([139.0], [28.5], batch_size=8, predicted=Predicted(decode_token_ms=28.0, faster_unquantized=faster))
    usual = made([139.0], [28.5], predicted=Predicted(decode_token_ms=28.0))
    said = [line for line in notes([usual, slow]).splitlines() if "faster" in line]
    start = f"- native, batch size 8: faster with {slow.dtype} weights, the estimator expects: "
    assert said == [f"{start}Prefill in 123.46 ms and Decode (token) in 2.50 ms."]
    assert Record.from_json(slow.to_json()).predicted == slow.predicted
