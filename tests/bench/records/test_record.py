from __future__ import annotations

import json
from dataclasses import replace

import pytest
from example_records import failed, record
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.records.record import Bound, Checked, PeakMemory, Predicted, Record, throughput, work
from inferometer.bench.records.statistics import Summary

# The names that design.md promises to others.
PROMISED = """
schema_version case_id started_at model weights backend stack_version device device_name gpus link dtype quantize kv_dtype tensor_parallel
admission group_size num_groups memory_limit batch_size sequence_length decode_length runs warmups status evidence prefill_ms
decode_token_ms decode_total_ms total_ms forward_ms throughput peak_memory_bytes pages_peak link_gb_s energy bound utilisation predicted
serving environment checked
"""


def test_a_record_has_every_promised_name() -> None:
    assert set(record().to_json()) >= set(PROMISED.split())


def test_unknown_is_null() -> None:
    value = record().to_json()
    for name in ("link", "quantize", "forward_ms", "pages_peak", "energy", "bound", "utilisation", "predicted", "serving", "checked"):
        assert value[name] is None
    assert value["peak_memory_bytes"] == {"allocated": None, "reserved": None, "device": None}


def test_throughputs_are_means_of_the_runs_rates() -> None:
    rates = record(prefill=[10.0, 20.0], decode=[40.0, 80.0]).to_json()["throughput"]
    assert rates["prefill_first_tok_s"] == pytest.approx((200 + 100) / 2)
    assert rates["prefill_prompt_tok_s"] == pytest.approx((1400 + 700) / 2)
    assert rates["decode_tok_s"] == pytest.approx((200 + 100) / 2)  # 2 rows x 4 steps
    assert rates["total_tok_s"] == pytest.approx((200 + 100) / 2)  # 2 rows x 5 tokens in 50 and 100 ms


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=12),
    st.integers(1, 64),
    st.integers(1, 40),
)
def test_every_measurement_keeps_the_books(times: list[tuple[float, float]], batch_size: int, decode_length: int) -> None:
    made = record([p for p, _ in times], [d for _, d in times], batch_size=batch_size, decode_length=decode_length)
    assert Record.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_optional_parts_survive_json() -> None:
    made = record(
        bound=Bound(prefill_ms=5.0, decode_token_ms=2.0, binds={"prefill_ms": "compute"}, basis="datasheet"),
        predicted=Predicted(prefill_ms=9.0, interval={"prefill_ms": (8.0, 10.0)}),
        peak_memory_bytes=PeakMemory(allocated=3),
        checked=Checked(method="by hand", max_error=1e-6, tolerance=1e-4, passed=True),
        environment={"python": "3", "cores": 2},
        energy={"prefill_j": 1.5},
    )
    assert Record.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_token_time_that_is_not_the_total_over_the_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="4 steps"):
        record(decode_token_ms=Summary.of([10.0, 11.1]))


def test_a_total_that_is_not_the_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="total_ms"):
        record(total_ms=Summary.of([50.0, 57.0]))


def test_a_rate_that_does_not_give_the_tokens_is_refused() -> None:
    good = record()
    rates = {**good.throughput.samples, "decode_tok_s": (200.0, 181.0)}
    with pytest.raises(ValueError, match=r"decode_tok_s 181.0 x 44.0 ms is not 8 tokens"):
        replace(good, throughput=replace(good.throughput, samples=rates))


def test_an_average_that_is_not_of_its_rates_is_refused() -> None:
    good = record()
    with pytest.raises(ValueError, match="mean"):
        replace(good, throughput=replace(good.throughput, decode_tok_s=8 * 1000 / 42.0))


def test_a_rate_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no time"):
        record(throughput=replace(record().throughput, forward_tok_s=1.0))


def test_a_missing_run_is_refused() -> None:
    with pytest.raises(ValueError, match="each of the 3 runs"):
        record(runs=3)


def test_decode_length_one_has_no_decode() -> None:
    value = record(decode_length=1).to_json()
    assert value["decode_total_ms"] is value["decode_token_ms"] is value["throughput"]["decode_tok_s"] is None
    assert value["total_ms"]["samples"] == value["prefill_ms"]["samples"]


@pytest.mark.parametrize("status", ["oom", "error", "timeout", "skipped"])
def test_a_failure_has_evidence_and_no_times(status: str) -> None:
    value = failed(status).to_json()
    assert value["prefill_ms"] is None
    assert value["throughput"]["decode_tok_s"] is None
    with pytest.raises(ValueError, match="evidence"):
        failed(status, evidence="")
    with pytest.raises(ValueError, match="no times"):
        record(status=status, evidence="x")


def test_a_failed_check_is_no_ok() -> None:
    wrong = Checked(method="by hand", max_error=0.5, tolerance=1e-4, passed=False)
    with pytest.raises(ValueError, match="failed check"):
        record(checked=wrong)
    assert failed("error", checked=wrong).checked == wrong


def test_another_schema_and_unknown_names_are_refused() -> None:
    value = record().to_json()
    with pytest.raises(ValueError, match="schema_version"):
        Record.from_json({**value, "schema_version": 2})
    with pytest.raises(ValueError, match="speed"):
        Record.from_json({**value, "speed": 1})
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json({})


def test_prefill_and_decode_that_share_sweeps_have_the_total_alone() -> None:
    total = Summary.of([50.0, 56.0])
    phases = dict.fromkeys(("prefill_ms", "decode_total_ms", "forward_ms"))
    rates = throughput(work(batch_size=2, sequence_length=7, steps=4, total_ms=total, **phases))
    absent = dict.fromkeys(("prefill_ms", "decode_total_ms", "decode_token_ms"))
    made = record(**absent, total_ms=total, throughput=rates, admission="diagonal", group_size=1, pages_peak=3, page_size=16)
    assert Record.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.throughput.total_tok_s == pytest.approx((10 / 0.050 + 10 / 0.056) / 2)
    with pytest.raises(ValueError, match="no other time"):
        replace(made, decode_total_ms=Summary.of([40.0, 44.0]))
    with pytest.raises(ValueError, match="total_ms"):
        replace(made, total_ms=None)
    with pytest.raises(ValueError, match="prefill_ms"):
        replace(made, admission=None)


def test_until_the_first_tokens_is_part_of_a_total_that_is_shared() -> None:
    total, part = Summary.of([50.0, 56.0]), Summary.of([20.0, 30.0])
    phases = dict.fromkeys(("prefill_ms", "decode_total_ms", "forward_ms"))
    rates = throughput(work(batch_size=2, sequence_length=7, steps=4, total_ms=total, **phases))
    absent = dict.fromkeys(("prefill_ms", "decode_total_ms", "decode_token_ms"))
    made = record(**absent, total_ms=total, throughput=rates, admission="diagonal", group_size=1, first_tokens_ms=part, first_tokens=3)
    assert Record.from_json(json.loads(json.dumps(made.to_json()))) == made
    for change, said in (
        ({"first_tokens": None}, "go together"),
        ({"first_tokens_ms": None}, "go together"),
        ({"first_tokens": 1}, "not from 2 to 10"),
        ({"first_tokens": 11}, "not from 2 to 10"),
        ({"first_tokens_ms": Summary.of([20.0, 57.0])}, "is more than total_ms"),
        ({"first_tokens_ms": Summary.of([20.0])}, "one sample for each"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(made, **change)
    with pytest.raises(ValueError, match="share sweeps"):
        replace(record(), first_tokens_ms=part, first_tokens=3)
