"""Records in few bytes: what is read back is what was written, but for most of what sensors said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from example_records import failed, record
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.records.compact import Expander, compacted
from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Bound, PeakMemory, Predicted, Record
from inferometer.errors import UserError
from inferometer.report.records.gathering import gather

HERE = {"inferometer": "1.0", "cpu": "a processor", "session": "one", "cores": 2}
TIMES = st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=3)


def measured(prefill: list[float], decode: list[float], batch_size: int, session: str, memory: int | None) -> Record:
    sensors = {
        "gpu_power_w": {"value": float(batch_size), "unit": "W", "reason": None},
        "gpu_throttle_reasons": {"value": ["power cap"] * (batch_size % 2), "unit": "names", "reason": None},
        "gpu_processes": {"value": memory, "unit": "processes", "reason": "why" if memory is None else None},
    }
    return record(
        prefill,
        decode,
        batch_size=batch_size,
        study="mine",
        part="sweep",
        column="ours",
        environment={**HERE, "session": session, "sensors": sensors},
        peak_memory_bytes=PeakMemory(allocated=memory),
        bound=Bound(prefill_ms=1.0, decode_token_ms=2.0, binds={"prefill_ms": "compute"}, basis="datasheet"),
        predicted=Predicted(prefill_ms=prefill[0], interval={"prefill_ms": (1.0, 2.0)}, basis="b"),
    )


OK = st.builds(measured, TIMES, TIMES, st.integers(1, 9), st.sampled_from(["one", "two"]), st.none() | st.integers(0, 9))
LOST = st.builds(
    lambda status, words, known: failed(status, words, environment=HERE if known else {}),
    st.sampled_from(["oom", "error", "skipped", "timeout"]),
    st.text(min_size=1, max_size=9),
    st.booleans(),
)


def calm(given: Record) -> Record:
    """With what is kept of its sensors."""
    if "sensors" not in given.environment:
        return given
    values = {name: given.environment["sensors"][name]["value"] for name in ("gpu_throttle_reasons", "gpu_processes")}
    kept = {name: {"value": value} for name, value in values.items() if value is not None}
    return replace(given, environment={**given.environment, "sensors": kept})


def lines(records: list[Record]) -> str:
    return "".join(json.dumps(line) + "\n" for line in compacted(records))


@given(st.lists(OK | LOST, max_size=8))
def test_what_is_read_is_what_was_written(records: list[Record]) -> None:
    expander = Expander()
    read = [whole for line in lines(records).splitlines() if (whole := expander.take(json.loads(line))) is not None]
    assert [Record.from_json(each) for each in read] == [calm(each) for each in records]


def test_both_readers_read_it_with_records_as_they_are_behind(tmp_path: Path) -> None:
    records = [measured([10.0, 11.0, 12.0], [40.0, 44.0, 48.0], size, "one", 5) for size in (1, 2, 4)]
    path = tmp_path / "records.jsonl"
    path.write_text(lines(records) + json.dumps(records[0].to_json()) + "\n")
    wanted = [*(calm(each) for each in records), records[0]]
    assert read_records(path) == wanted
    assert list(gather([path]).records) == wanted


def test_what_is_common_is_said_once() -> None:
    records = [measured([10.0, 11.0, 12.0], [40.0, 44.0, 48.0], size, "one", size) for size in range(1, 33)]
    text = lines(records)
    assert text.count('"cpu": "a processor"') == 1
    assert "gpu_power_w" not in text
    assert text.count('"power cap"') == 16
    assert len(text) < sum(len(json.dumps(each.to_json())) for each in records) / 4


@pytest.mark.parametrize("place", [1, -1, True, "0", [0], None])
def test_a_line_that_shares_what_was_not_said_is_told(tmp_path: Path, place: object) -> None:
    path = tmp_path / "records.jsonl"
    first, second = lines([measured([1.0] * 3, [4.0] * 3, 1, "one", 1)]).splitlines()
    path.write_text(first + "\n" + json.dumps({**json.loads(second), "shared": place}) + "\n")
    for read in (read_records, lambda file: gather([file])):
        with pytest.raises(UserError, match=r"records\.jsonl, line 2: it shares"):
            read(path)


PLAIN = st.recursive(
    st.none() | st.integers(-2, 2) | st.text(max_size=3), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(PLAIN)
def test_whatever_a_line_holds_is_a_record_or_a_users_error(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    shared = value if isinstance(value, dict) else {}
    path.write_text(json.dumps({"shared": shared}) + "\n" + json.dumps({"shared": 0, "runs": value}) + "\n")
    for read in (read_records, lambda file: gather([file])):
        with pytest.raises(UserError, match=r"line 2|no record"):
            read(path)
