"""The shipped studies make the tables of their documents: the same headings, rows and columns."""

from __future__ import annotations

import re
from functools import cache

import pytest
from report_records import answered

from inferometer.bench.study.library import find_study
from inferometer.bench.study.study import Study
from inferometer.bench.study.table import plot_of, table_of
from inferometer.report.study.plots import plots
from inferometer.report.study.tables import document

NAMES = ("offload-schedules", "estimate-vs-measured", "tensor-parallel", "gpt3-latency", "backend-sweep")


@cache
def study(name: str, scale: str = "full") -> Study:
    return find_study(name).study(scale)


@cache
def made(name: str, form: str = "md") -> str:
    return document(study(name), answered(study(name)), format="rst" if form == "rst" else "md")


def plain(text: str) -> str:
    """Without the padding of columns."""
    return re.sub(r" *\| *", "|", text)


def rows_under(name: str, heading: str) -> list[list[str]]:
    """The first table whose heading begins so, without padding."""
    every = plain(made(name)).splitlines()
    first = next(index for index, line in enumerate(every) if line.startswith(heading))
    rest = every[first + 2 :]
    return [line[1:-1].split("|") for line in rest[: next((i for i, line in enumerate(rest) if not line), len(rest))]]


def test_document_000() -> None:
    text = plain(made("offload-schedules"))
    assert "|latency|num batch|Origin|zigzag|diagonal||\n" in text
    assert "\n|throughput||Origin|zigzag|diagonal|scale|\n" in text
    assert "\n|peak mem||Origin|zigzag|diagonal||\n" in text
    assert "|Num batches|Prompt|Origin|Origin|Origin|Zigzag|Zigzag|Zigzag|Diag|Diag|Diag|\n" in text
    assert "\n|||latency|throughput|peak mem|latency|throughput|peak mem|latency|throughput|peak mem|\n" in text
    assert "|Num batches \\ Prompt|128|256|512|1024|\n" in text
    rows = rows_under("offload-schedules", "|Num batches|Prompt|")[1:]
    assert [(row[0], row[1]) for row in rows] == [(n, p) for n in ("4", "8", "16", "32") for p in ("128", "256", "512", "1024")]
    for title in (
        "## Flexgen",
        "### Different Batches",
        "### Different Prompt length",
        "## Compare Scale",
        "### throughput",
        "### peak mem",
    ):
        assert f"\n{title}\n" in made("offload-schedules")


def test_document_000_s_own_figures_are_the_published_ones() -> None:
    published = made("offload-schedules").split("Published on NVIDIA RTX A6000")
    # Different Batches, then Different Prompt length, then the two scales: as the document prints them.
    assert "|4|2.649|2.067||" in plain(published[1])
    assert "|32|386.269|623.298|1.614|" in plain(published[1])
    assert "|32|28.987|27.749||" in plain(published[1])
    assert "|16|1024|14.248|287.479|29.073|11.101|368.976|28.366|" in plain(published[2])
    assert "|32|1.973|1.822|1.620||" in plain(published[3])
    assert "|32|0.878|0.926|0.957||" in plain(published[4])


def test_document_001() -> None:
    text = made("estimate-vs-measured", "rst")
    groups = r"\| Model +\| Device +\| Runtime \(ms\) +\| Memory \(GiB\) +\| Energy \(J/token\) +\| Throughput \(token/sec\) +\|"
    assert re.search(groups, text)
    assert re.search(r"\| +\| +" + r"\| Measured +\| Estimated +\| Error +" * 4 + r"\|", text)
    for model in ("facebook/opt-1.3b", "facebook/opt-6.7b", *(f"AICrossSim/clm-{size}" for size in ("60m", "200m", "400m", "1.1b"))):
        assert f"| {model} " in text
    # The document's runtime, with the error relative to what it measured and its throughput the right way up.
    assert re.search(r"\| AICrossSim/clm-60m +\| NVIDIA RTX A6000 +\| 109.11 +\| 76.87 +\| -29.55% .*\| 150160 ", text)
    assert "NVIDIA RTX A5000 x 8" in text


def test_document_002() -> None:
    text = plain(made("tensor-parallel"))
    assert "|Step|Batch Size|Average|Lowest|Highest|p50|p90|p99|\n" in text
    assert "|Step|Batch Size|Average|Lowest|Highest|\n" in text
    assert "|Parameter|Value|\n" in text
    assert "|Model|bigscience/bloomz-7b1-mt|\n" in text
    for gpus in (1, 2, 4, 8):
        assert f"\n## Tensor Parallel (TP) - {gpus} GPUs\n" in text
    rows = rows_under("tensor-parallel", "|Step|Batch Size|Average|Lowest|Highest|p50|")
    assert [row[0] for row in rows if row[0]] == ["Prefill", "Decode (token)", "Decode (total)"]
    assert [row[1] for row in rows] == ["1", "2", "4", "8", "16", "32"] * 3
    assert rows[0] == ["Prefill", "1", *["10.00 ms"] * 6]
    rates = plain(made("tensor-parallel")).split("|Step|Batch Size|Average|Lowest|Highest|\n")[1].splitlines()
    assert rates[1] == "|Prefill|1|100.00 tokens/secs|100.00 tokens/secs|100.00 tokens/secs|"
    assert "- tensor_parallel: Some(1,2,4,8)\n" in made("tensor-parallel")


def test_document_003() -> None:
    text = plain(made("gpt3-latency"))
    heading = "|Model Name|Params|Layers|Hidden_units|inference time of per-token|total time of 1024 tokens|"
    assert heading in text
    assert "(batch_size=4, max_sequence_length=1024, context_length=512, precision=float16)" in text
    assert "(batch_size=16, max_sequence_length=1024, context_length=512, precision=float16)" in text
    rows = rows_under("gpt3-latency", heading)
    assert [row[0] for row in rows] == [f"GPT-3 {size}" for size in ("Small", "Medium", "Large", "XL", "2.7B", "6.7B", "13B")]
    assert [(row[2], row[3]) for row in rows[:4]] == [("12", "768"), ("24", "1024"), ("24", "1536"), ("24", "2048")]
    assert rows[0][4:] == ["2.00ms", "1.03s", "1.00GiB"]
    assert "EET (predicted)|FasterTransformer (predicted)|LightSeq (predicted)|EET (published on NVIDIA A100 SXM4 40GB)" in text


def test_document_004() -> None:
    names = "|HF (fp32)|HF (bf16)|HF (int8)|DS-inference (fp16)|Inferometer (bf16)|Inferometer (int8)|"
    text = plain(made("backend-sweep"))
    assert f"## Throughput (tokens/sec|msec/token)\n\n|batch_size{names}\n" in text
    assert f"## Latency (sec)\n\n|batch_size{names}\n" in text
    rows = [line.split() for line in made("backend-sweep").split("## Latency (sec)")[1].splitlines() if re.match(r"\| \d", line)]
    assert [row[1] for row in rows[:22]] == [*(str(2**n) for n in range(8)), *(str(128 * n) for n in range(2, 16))]
    assert "Published on NVIDIA A100 SXM4 80GB: Document 004" in text
    # Its contradictory cell carries its note.
    assert "|512|14.82 [1]|6.88|" in text.split("## Latency (sec)")[1].split("Published on")[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["tiny", "full"])
def test_every_table_and_plot_of_a_study_has_figures_at_every_scale(name: str, scale: str) -> None:
    asked = study(name, scale)
    records = answered(asked)
    text = document(asked, records)
    assert "Tables without records" not in text
    assert "several [" not in text
    assert len(plots(asked, records)) >= len(asked.plots)
    for values in asked.tables:
        table_of(values)
    for values in asked.plots:
        plot_of(values)


@pytest.mark.parametrize("name", NAMES)
def test_every_study_says_what_is_wrong_in_its_document(name: str) -> None:
    assert "What is wrong in the published tables" in made(name)


def test_nothing_is_compared_with_figures_of_other_hardware() -> None:
    published = [part.split("\n\n")[1] for part in made("backend-sweep").split("Published on ")[1:]]
    assert all("(" not in line for table in published for line in table.splitlines()[2:])


def test_figures_of_the_same_hardware_are_compared() -> None:
    asked = study("offload-schedules")
    records = answered(asked, device="rtx-a6000", device_name="NVIDIA RTX A6000")
    text = document(asked, records)
    # 100 ms over 2.067 s.
    assert "2.067 (0.048)" in text
    assert "In brackets: measured here over published, on the same hardware." in text
