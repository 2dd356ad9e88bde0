"""A study's tables: what stands where, and what stands in place of a figure that there is none of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import HERE, ran, study_of

from inferometer.bench.records.record import Record
from inferometer.estimate.estimate import estimate
from inferometer.report.study.tables import document

SWEEP = """
[fixed]
model = "opt-125m"
sequence_length = 8
decode_length = 5
[[part]]
name = "sweep"
axes = { batch_size = [1, 2, 4] }
columns = [
    { name = "old", backend = "hf" },
    { name = "new", backend = "native" },
]
"""
TABLE = """
[[table]]
part = "sweep"
title = "Throughput (tokens/sec | msec/token)"
rows = "batch_size"
columns = "column"
cell = "{throughput:.2f} | {ms_per_token:.2f}"
beside = []
"""


def lines(text: str, start: str) -> list[str]:
    """The table whose first line begins so."""
    every = text.splitlines()
    first = next(index for index, line in enumerate(every) if line.startswith(start))
    rest = every[first:]
    return rest[: next((index for index, line in enumerate(rest) if not line), len(rest))]


def cells(text: str, start: str) -> list[list[str]]:
    """The rows of that table below its headings."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines(text, start)[2:]]


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
    assert "2 cases fall into one cell" in made


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
    assert cells(predicted, "| batch_size") == [["1", "0.020 (1.25)"], ["2", "0.020"]]
    _, bound = made.split(
        "The least that this device needs (datasheet limits). In brackets: the share of it that was reached, and what binds."
    )
    assert cells(bound, "| batch_size") == [["1", "0.0090 (36%, memory)"], ["2", "0.0090"]]


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


def pair(size: int, *, old: float, new: float, **changes: Any) -> list[Record]:
    return [
        ran("old", prefill=[old], token=[old], batch_size=size, backend="hf"),
        ran("new", prefill=[new], token=[new], batch_size=size, **changes),
    ]


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
    assert cells(document(study_of(SWEEP + RATIO), records), "| batch_size | scale") == [["1", "-"], ["2", "-"]]


BLOCKS = """
[[table]]
part = "sweep"
title = "Different Batches"
rows = [{ axis = "batch_size", heading = "num batch" }]
cell = "{figure:.3f}"
block_headings = true
beside = []
blocks = [{ label = "latency", figure = "latency" }, { label = "throughput", figure = "throughput" }]
columns = [
    { heading = "Origin", column = "old" },
    { heading = "diagonal", column = "new" },
    { heading = "scale", ratio = ["new", "old"], blocks = ["throughput"] },
]
"""


def test_blocks_one_under_the_other_as_document_000_has_them() -> None:
    made = document(study_of(SWEEP + BLOCKS), [*pair(1, old=10, new=5), *pair(2, old=10, new=4)])
    assert "\n".join(lines(made, "| latency")) == (
        "| latency    | num batch | Origin  | diagonal |       |\n"
        "|------------|-----------|---------|----------|-------|\n"
        "|            | 1         | 0.050   | 0.025    |       |\n"
        "|            | 2         | 0.050   | 0.020    |       |\n"
        "|            |           |         |          |       |\n"
        "| throughput |           | Origin  | diagonal | scale |\n"
        "|            | 1         | 100.000 | 200.000  | 2.000 |\n"
        "|            | 2         | 200.000 | 500.000  | 2.500 |"
    )


GROUPED = """
[[table]]
part = "sweep"
title = "Groups"
rows = [{ axis = "model", heading = "Model" }]
beside = []
columns = [
    { group = "Runtime (ms)", heading = "Measured", column = "new", cell = "{forward_ms:.2f}" },
    { group = "Runtime (ms)", heading = "Estimated", column = "new", cell = "{predicted.forward_ms:.2f}" },
    { group = "Runtime (ms)", heading = "Error", column = "new", cell = "{error.forward_ms:.2%}" },
    { group = "Throughput (token/sec)", heading = "Measured", column = "new", cell = "{throughput:.0f}" },
]
"""


def test_errors_are_relative_to_what_was_measured_and_throughput_is_tokens_a_second() -> None:
    made = document(study_of(SWEEP + GROUPED), [ran("new", forward=[8.0], decode_length=None, predicted={"forward_ms": 10.0})])
    assert "\n".join(lines(made, "| Model")) == (
        "| Model    | Runtime (ms) | Runtime (ms) | Runtime (ms) | Throughput (token/sec) |\n"
        "|----------|--------------|--------------|--------------|------------------------|\n"
        "|          | Measured     | Estimated    | Error        | Measured               |\n"
        "| opt-125m | 8.00         | 10.00        | 25.00%       | 1000                   |"
    )


def test_headings_span_their_columns_in_restructured_text() -> None:
    records = [ran("new", forward=[8.0], decode_length=None, predicted={"forward_ms": 10.0})]
    made = document(study_of(SWEEP + GROUPED), records, format="rst")
    assert "\n".join(lines(made, "+--")) == (
        "+----------+-------------------------------+------------------------+\n"
        "| Model    | Runtime (ms)                  | Throughput (token/sec) |\n"
        "+==========+==========+===========+========+========================+\n"
        "|          | Measured | Estimated | Error  | Measured               |\n"
        "+----------+----------+-----------+--------+------------------------+\n"
        "| opt-125m | 8.00     | 10.00     | 25.00% | 1000                   |\n"
        "+----------+----------+-----------+--------+------------------------+"
    )
    assert "Groups\n------" in made


def test_phases_with_percentiles_and_rates() -> None:
    spec = """
[[table]]
part = "sweep"
title = "Latency"
kind = "percentiles"
rows = [{ axis = "batch_size", heading = "Batch Size" }]
words = { oom = "NaN ms" }
beside = []
[[table]]
part = "sweep"
title = "Throughput"
kind = "rates"
rows = [{ axis = "batch_size", heading = "Batch Size" }]
beside = []
"""
    records = [ran("new", prefill=[10.0, 20.0], token=[1.0, 2.0]), ran("new", batch_size=2, status="oom", evidence="full")]
    made = document(study_of(SWEEP + spec), records)
    assert "\n".join(lines(made, "| Step           | Batch Size | Average")) == (
        "| Step           | Batch Size | Average    | Lowest     | Highest    | p50        | p90        | p99        |\n"
        "|----------------|------------|------------|------------|------------|------------|------------|------------|\n"
        "| Prefill        | 1          | 15.00 ms   | 10.00 ms   | 20.00 ms   | 10.00 ms   | 20.00 ms   | 20.00 ms   |\n"
        "|                | 2          | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] |\n"
        "| Decode (token) | 1          | 1.50 ms    | 1.00 ms    | 2.00 ms    | 1.00 ms    | 2.00 ms    | 2.00 ms    |\n"
        "|                | 2          | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] |\n"
        "| Decode (total) | 1          | 6.00 ms    | 4.00 ms    | 8.00 ms    | 4.00 ms    | 8.00 ms    | 8.00 ms    |\n"
        "|                | 2          | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] | NaN ms [1] |"
    )
    # Means of the runs' rates: 1 / 10 ms and 1 / 20 ms; 4 / 4 ms and 4 / 8 ms.
    assert cells(made, "| Step    | Batch Size | Average")[0] == [
        "Prefill",
        "1",
        "75.00 tokens/secs",
        "50.00 tokens/secs",
        "100.00 tokens/secs",
    ]
    assert cells(made, "| Step    | Batch Size | Average")[2] == [
        "Decode",
        "1",
        "750.00 tokens/secs",
        "500.00 tokens/secs",
        "1000.00 tokens/secs",
    ]


def test_a_table_for_each_value_under_its_own_heading() -> None:
    study = study_of(
        SWEEP
        + TABLE.replace(
            'title = "Throughput (tokens/sec | msec/token)"', 'each = ["column"]\nsection = "Stack {column}"\ntitle = "Throughput"'
        )
    )
    made = document(study, pair(1, old=10, new=5))
    assert made.index("## Stack old") < made.index("100.00 \\| 10.00") < made.index("## Stack new") < made.index("200.00 \\| 5.00")


def test_a_table_without_records_is_named_and_not_shown() -> None:
    made = document(study_of(SWEEP + TABLE), [])
    assert "## Tables without records\n\n- Throughput (tokens/sec | msec/token)" in made
    assert "| batch_size" not in made


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


def test_the_launcher_lists_what_is_constant_and_what_varies() -> None:
    made = document(
        study_of(SWEEP + '[[table]]\npart = "sweep"\ntitle = "Args"\nkind = "launcher"\n'), [*pair(1, old=1, new=1), *pair(2, old=1, new=1)]
    )
    assert "```bash\ninferometer study run mine\n```" in made
    assert '- model: "opt-125m"' in made
    assert "### Variables\n\n- backend: Some(hf,native)\n- batch_size: Some(1,2)" in made


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
