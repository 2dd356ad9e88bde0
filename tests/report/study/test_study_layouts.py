"""The layouts of a study's tables: blocks, headings over several columns, percentiles, a table a value, the launcher's lists."""

from __future__ import annotations

from report_records import ran, study_of
from study_documents import SWEEP, TABLE, cells, lines, pair

from inferometer.report.study.tables import document

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


def test_the_launcher_lists_what_is_constant_and_what_varies() -> None:
    made = document(
        study_of(SWEEP + '[[table]]\npart = "sweep"\ntitle = "Args"\nkind = "launcher"\n'), [*pair(1, old=1, new=1), *pair(2, old=1, new=1)]
    )
    assert "```bash\ninferometer study run mine\n```" in made
    assert '- model: "opt-125m"' in made
    assert "### Variables\n\n- backend: Some(hf,native)\n- batch_size: Some(1,2)" in made
