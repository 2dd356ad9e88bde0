"""Figures of a study's tables that no run gave: predicted, at the bound, published, given by the file."""

from __future__ import annotations

from typing import Any

from report_records import ran, study_of
from study_documents import SWEEP, TABLE, cells

from inferometer.estimate.estimate import estimate
from inferometer.report.study.tables import document

PREDICTED: dict[str, Any] = {"prefill_ms": 4.0, "decode_token_ms": 4.0, "peak_memory_bytes": 1 << 30}


BOUND: dict[str, Any] = {
    "prefill_ms": 1.0,
    "decode_token_ms": 2.0,
    "basis": "datasheet",
    "binds": {"prefill_ms": "compute", "decode_token_ms": "memory"},
}


def test_every_table_stands_beside_its_prediction_and_its_bound() -> None:
    study = study_of(SWEEP + TABLE.replace("beside = []", "").replace("{throughput:.2f} | {ms_per_token:.2f}", "{latency:.3f}"))
    records = [
        ran("new", prefill=[5.0, 5.0], token=[5.0, 5.0], predicted=PREDICTED, bound=BOUND),
        ran("new", batch_size=2, status="oom", evidence="full", predicted=PREDICTED, bound=BOUND),
    ]
    made = document(study, records)
    _, predicted = made.split("Predicted for the same device. In brackets: measured over predicted.")
    # What the model's single layer asks of the device is less than the host does for a step.
    assert cells(predicted, "| batch_size") == [["1", "0.020 (1.25) [1]"], ["2", "0.020"]]
    _, bound = made.split(
        "The least that this device needs (datasheet limits). In brackets: the share of it that was reached, and what binds."
    )
    assert cells(bound, "| batch_size") == [["1", "0.0090 (36%, memory)"], ["2", "0.0090"]]


def test_shares_above_their_bound_are_told_below_the_table() -> None:
    bound = BOUND | {"basis": "calibrated"}
    study = study_of(SWEEP + TABLE.replace("beside = []", "").replace("{throughput:.2f} | {ms_per_token:.2f}", "{latency:.3f}"))
    note = "- Above 100 % of bound: the device is faster than the limits that the bound rests on (calibrated limits)"
    for token, told in (2.0, 0), (1.9, 1):
        made = document(study, [ran("new", prefill=[1.0], token=[token], batch_size=size, bound=bound) for size in (1, 2)])
        assert made.count(note) == told
    measured, least = made.split("The least that this device needs")
    assert note not in measured
    assert "(105%, memory)" in least
    shares = TABLE.replace("{throughput:.2f} | {ms_per_token:.2f}", "{share.latency:.0%}")
    assert document(study_of(SWEEP + shares), [ran("new", prefill=[1.0], token=[1.9], bound=bound)]).count(note) == 1


def test_a_stack_that_did_not_run_says_that_it_is_predicted() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncell = "{decode_ms:.2f}"\nbeside = []\n'
    spec += 'columns = [{ heading = "ours", column = "new" }, { heading = "EET", stack = "eet" }]\n'
    made = document(study_of(SWEEP + spec), [ran("new", prefill=[5.0], token=[5.0])])
    assert "| batch_size | ours | EET (predicted) |" in made
    ((_, ours, theirs),) = cells(made, "| batch_size | ours")
    assert ours == "5.00"
    assert float(theirs) > 0


def test_figures_of_the_file_say_that_they_are_published() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncell = "latency"\nbeside = []\n'
    spec += 'columns = [{ column = "new" }, { heading = "theirs", given = { 1 = 4.5 }, source = "a page" }]\n'
    made = document(study_of(SWEEP + spec), [ran("new", prefill=[5.0], token=[5.0], batch_size=size) for size in (1, 2)])
    assert cells(made, "| batch_size | new   | theirs (published)") == [["1", "0.025", "4.5"], ["2", "0.025", ""]]
    assert "- theirs (published): a page." in made


def test_a_published_chart_is_taken_by_its_name() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "sequence_length"\ncell = "latency"\nbeside = []\n'
    spec += 'columns = [{ column = "new" }, { heading = "EET", given = "003-a100-prompt-fairseq" }]\n'
    made = document(study_of(SWEEP + spec), [ran("new", prefill=[5.0], token=[5.0], sequence_length=size) for size in (128, 129)])
    assert cells(made, "| sequence_length") == [["128", "0.025", "4.3"], ["129", "0.025", ""]]
    assert "- EET (published): Document 003: EET README, a100_prompt.png, Fairseq over EET on an A100" in made


def test_groups_are_predicted_as_a_run_of_groups_in_their_order() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncolumns = "column"\ncell = "total_ms"\nbeside = ["predicted"]\n'
    asked: dict[str, Any] = {"group_size": 4, "num_groups": 2, "batch_size": 8, "total": [100.0]}
    made = document(study_of(SWEEP + spec), [ran("old", admission="zigzag", **asked), ran("new", admission="diagonal", **asked)])
    ((_, zigzag, diagonal),) = cells(made.split("Predicted for the same device.")[1], "| batch_size")
    expected = [
        estimate("opt-125m", "h100-sxm", batch_size=8, sequence_length=8, decode_length=5, admission=order, group_size=4, calibration=None)
        for order in ("zigzag", "diagonal")
    ]
    assert [float(each.split(" ")[0]) for each in (zigzag, diagonal)] == [round(each.total_ms or 0, 2) for each in expected]


def test_a_model_that_is_no_preset_has_no_prediction_and_is_not_looked_for() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncell = "latency"\nbeside = ["predicted"]\n'
    spec += 'columns = [{ column = "new" }, { heading = "EET", stack = "eet" }]\n'
    made = document(study_of(SWEEP + spec), [ran("new", prefill=[5.0], token=[5.0], model="/somewhere/else")])
    assert cells(made, "| batch_size") == [["1", "0.025", "-"]]
    assert "Predicted for the same device" not in made


def test_work_whose_phases_have_no_times_has_the_bound_of_the_same_work_beside_it() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncolumns = "column"\ncell = "latency"\nbeside = ["bound"]\n'
    asked: dict[str, Any] = {"group_size": 1, "num_groups": 1}
    old = ran("old", prefill=[5.0], token=[5.0], admission="zigzag", bound=BOUND, **asked)
    new = ran("new", total=[18.0], admission="diagonal", **asked)
    made = document(study_of(SWEEP + spec), [old, new])
    assert cells(made.split("The least that this device needs")[1], "| batch_size") == [
        ["1", "0.0090 (36%, memory)", "0.0090 (50%, memory)"]
    ]
    elsewhere = ran("new", total=[18.0], admission="diagonal", device_name="another", **asked)
    made = document(study_of(SWEEP + spec), [old, elsewhere])
    assert cells(made.split("The least that this device needs")[1], "| batch_size") == [["1", "0.0090 (36%, memory)"]]


def test_a_stack_that_did_not_run_is_not_predicted_for_one_of_several_cases() -> None:
    spec = '[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncell = "decode_ms"\nbeside = []\n'
    spec += 'columns = [{ heading = "EET", stack = "eet" }, { heading = "EET half", stack = "eet", where = { dtype = "float16" } }]\n'
    lengths = [ran("new", prefill=[1.0], token=[1.0], sequence_length=size) for size in (8, 16)]
    assert cells(document(study_of(SWEEP + spec), lengths), "| batch_size") == [["1", "several [1]", "several [1]"]]
    types = [ran("new", prefill=[1.0], token=[1.0], dtype=dtype) for dtype in ("float16", "float32")]
    ((_, unclear, half),) = cells(document(study_of(SWEEP + spec), types), "| batch_size")
    assert unclear == "several [1]"
    assert float(half) > 0


def test_a_publication_s_devices_are_rows_whatever_ran_here_on_how_many() -> None:
    spec = """
[[table]]
part = "sweep"
title = "T"
rows = ["model", { axis = "device_name", heading = "Device" }]
columns = "column"
cell = "{forward_ms:.2f}"
published = { regimes = ["001-runtime-1gpu"], stack = "torch-eager-forward" }
"""
    asked: dict[str, Any] = {"model": "opt-1.3b", "batch_size": 16, "sequence_length": 1024, "decode_length": None, "loss": True}
    records = [
        ran("old", forward=[10.0], device_name="NVIDIA H100 80GB HBM3", **asked),
        ran("old", forward=[20.0], device="rtx-a5000", device_name="NVIDIA RTX A5000", case_id="1" * 16, **asked),
    ]
    made = document(study_of(SWEEP + spec), records)
    assert cells(made, "| model") == [["opt-1.3b", "NVIDIA H100 80GB HBM3", "10.00"], ["opt-1.3b", "NVIDIA RTX A5000", "20.00"]]
    published = cells(made.split("Published on NVIDIA RTX A5000 and NVIDIA RTX A6000")[1], "| model")
    assert published == [["opt-1.3b", "NVIDIA RTX A5000", "693.77 (0.029)"], ["opt-1.3b", "NVIDIA RTX A6000", "510.96"]]
