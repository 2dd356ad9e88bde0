"""Published figures beside a record: only those of its very case, and only on the hardware that they name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import ran

from inferometer.bench.records.record import Record
from inferometer.bench.study.layout import PublishedSpec
from inferometer.estimate.measured import load_rows
from inferometer.report.study.published_figures import published


def groups(**changes: Any) -> Record:
    asked = {"model": "opt-1.3b", "sequence_length": 512, "decode_length": 32, "admission": "diagonal", "group_size": 8, "num_groups": 4}
    asked |= {"batch_size": 32, "total": [100.0]}
    return ran("diagonal", **{**asked, **changes})


ZERO = PublishedSpec(regimes=("000-latency", "000-memory"), stack="flexgen", places=("Different Prompt length",))


def test_time_and_memory_of_one_case_are_one_publication() -> None:
    (found,) = published(groups(), ZERO)
    assert found.measured.total_ms == 2069.0
    assert found.measured.peak_memory_bytes == pytest.approx(6.086 * 2**30)
    assert found.device == "rtx-a6000"
    assert not found.alike(groups())
    assert found.alike(groups(device="rtx-a6000"))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "opt-6.7b"},
        {"sequence_length": 511},
        {"decode_length": 31},
        {"num_groups": 8, "batch_size": 64, "group_size": 8, "sequence_length": 100},
        {"group_size": 16, "num_groups": 2},
        {"admission": "row"},
        {"tensor_parallel": 2},
        {"quantize": "int8"},
    ],
)
def test_another_case_has_no_publication(changes: dict[str, Any]) -> None:
    assert published(groups(**changes), ZERO) == ()


def test_two_measurements_of_one_case_are_no_figure() -> None:
    # The document has prompts of 512 in two tables, from two runs.
    assert published(groups(), PublishedSpec(regimes=("000-latency",), stack="flexgen")) == ()


def test_a_publication_is_of_the_record_s_own_stack_and_type_unless_it_says_another() -> None:
    own = PublishedSpec(regimes=("004",), prompt_tokens=9)
    asked: dict[str, Any] = {"model": "doc004-1.3b", "sequence_length": 10, "decode_length": 100, "prefill": [1.0], "token": [1.0]}
    (found,) = published(ran("hf bf16", backend="hf", dtype="bfloat16", **asked), own)
    assert found.measured.total_ms == 2440.0
    (found,) = published(ran("hf fp32", backend="hf", dtype="float32", **asked), own)
    assert found.measured.total_ms == 1940.0
    assert published(ran("hf fp16", backend="hf", dtype="float16", **asked), own) == ()
    assert published(ran("native", dtype="bfloat16", **asked), own) == ()
    (found,) = published(ran("native", **asked), PublishedSpec(regimes=("004",), stack="deepspeed", prompt_tokens=9))
    assert found.measured.total_ms == 1620.0


def test_a_publication_s_own_estimate_comes_with_it_for_each_device() -> None:
    asked: dict[str, Any] = {"model": "opt-1.3b", "batch_size": 16, "sequence_length": 1024, "decode_length": None, "loss": True}
    record = ran("hf", forward=[100.0], backend="hf", **asked)
    found = published(record, PublishedSpec(regimes=("001-runtime-1gpu",), stack="torch-eager-forward"))
    assert {each.device: each.measured.forward_ms for each in found} == {"rtx-a5000": 693.77, "rtx-a6000": 510.96}
    assert [each.estimated.forward_ms for each in found if each.estimated is not None] == [740.79, 594.34]


def test_a_defect_that_is_known_goes_with_the_figure() -> None:
    asked: dict[str, Any] = {"model": "doc004-1.3b", "sequence_length": 9, "decode_length": 100, "batch_size": 512}
    (found,) = published(ran("hf", backend="hf", dtype="float32", prefill=[1.0], token=[1.0], **asked), PublishedSpec(regimes=("004",)))
    assert found.notes == ("The throughput column says 13.81 s for it.",)


ROWS = [row for row in load_rows("004") if row.dtype == "bfloat16"]


@given(st.sampled_from([1, 64, 100, 1024, 1792, 1920]), st.sampled_from([8, 9, 10]), st.sampled_from([99, 100]))
def test_a_figure_is_that_of_the_row_or_none(batch: int, length: int, new: int) -> None:
    asked: dict[str, Any] = {"model": "doc004-1.3b", "batch_size": batch, "sequence_length": length, "decode_length": new}
    record = ran("hf", backend="hf", dtype="bfloat16", prefill=[1.0], token=[1.0], **asked)
    expected = [row.value for row in ROWS if (row.batch, row.prompt_tokens, row.new_tokens) == (batch, length, new)]
    assert [each.measured.total_ms for each in published(record, PublishedSpec(regimes=("004",)))] == expected
