"""Records from files: torn, foreign, doubled, of other versions; and what is said of a mixture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import made

from inferometer.bench.records.record import Record
from inferometer.errors import UserError
from inferometer.report.records.gathering import gather, mixture

ONE, TWO = made([10.0], [2.0]), made([20.0], [3.0], batch_size=2)


def line(record: Record) -> str:
    return json.dumps(record.to_json()) + "\n"


def test_several_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(TWO))
    (tmp_path / "b.jsonl").write_text("\n" + line(ONE))
    found = gather([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert (found.records, found.remarks) == ((TWO, ONE), ())


def test_a_folder_stands_for_its_records(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(line(ONE))
    assert gather([tmp_path]).records == (ONE,)


def test_what_bench_prints_as_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"records": [ONE.to_json(), TWO.to_json()]}, indent=2))
    assert gather([tmp_path / "a.json"]).records == (ONE, TWO)


def test_a_mark_of_byte_order_costs_no_record(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(line(ONE) + line(TWO), encoding="utf-8-sig")
    (tmp_path / "document").write_text(json.dumps({"records": [ONE.to_json(), TWO.to_json()]}, indent=1), encoding="utf-8-sig")
    for name in ("lines", "document"):
        found = gather([tmp_path / name])
        assert (found.records, found.remarks) == ((ONE, TWO), ())


def test_a_torn_last_line_is_left_out_with_a_remark(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(ONE) + line(TWO)[:200])
    found = gather([tmp_path / "a.jsonl"])
    assert found.records == (ONE,)
    assert len(found.remarks) == 1
    assert "the last line is torn" in found.remarks[0]


def test_a_line_torn_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(ONE)[:99] + "\n" + line(TWO))
    found = gather([tmp_path / "a.jsonl"])
    assert found.records == (TWO,)
    assert "line 1 is torn" in found.remarks[0]


def test_a_record_in_two_files_counts_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(line(ONE))
    found = gather([tmp_path / "a", tmp_path / "b"])
    assert found.records == (ONE,)
    assert "1 record given more than once" in found.remarks[0]


@pytest.mark.parametrize("text", ["", "\n\n", '{"torn', "no records here\n"])
def test_a_file_without_records_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"a\.jsonl holds no record; name a file"):
        gather([tmp_path / "a.jsonl"])


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="name a file of records"):
        gather([tmp_path / name])


@pytest.mark.parametrize(
    ("version", "remedy"), [(2, "use the newer inferometer that wrote it"), (0, "measure it again"), ("x", "measure it again")]
)
def test_another_version_is_named_with_its_line(tmp_path: Path, version: object, remedy: str) -> None:
    other = {**ONE.to_json(), "schema_version": version, "whatever": 1}
    (tmp_path / "a.jsonl").write_text(line(ONE) + json.dumps(other) + "\n")
    with pytest.raises(UserError, match=rf"line 2: schema_version {version!r}, and this inferometer reads 1; {remedy}"):
        gather([tmp_path / "a.jsonl"])


def test_arithmetic_that_is_off_is_refused_with_its_line(tmp_path: Path) -> None:
    off = ONE.to_json()
    off["throughput"]["decode_tok_s"] *= 2
    (tmp_path / "a.jsonl").write_text(line(TWO) + json.dumps(off))
    with pytest.raises(UserError, match=r"line 2: throughput\.decode_tok_s"):
        gather([tmp_path / "a.jsonl"])


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps)), max_size=5))
def test_any_file_gives_records_or_a_users_error(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes | str]) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_bytes(b"\n".join(each if isinstance(each, bytes) else each.encode("utf-8", "surrogatepass") for each in lines))
    with pytest.raises(UserError):
        gather([path])


@settings(deadline=None)
@given(st.data())
def test_a_record_with_anything_in_a_field_is_read_or_refused_by_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    value = ONE.to_json()
    anything = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=3)
    value[data.draw(st.sampled_from(sorted(value)))] = data.draw(anything)
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_text(json.dumps(value))
    try:
        assert len(gather([path]).records) == 1
    except UserError as error:
        assert "line 1" in str(error)  # noqa: PT017


def test_one_sitting_on_one_machine_needs_no_words() -> None:
    assert mixture([ONE, TWO]) == []


def test_a_mixture_is_told() -> None:
    card = {"gpu": "a GPU", "cpu": "a Xeon", "cores": 8, "torch": "2.13", "inferometer": "0.1", "revision": "abc"}
    other = made([1.0], [1.0], device_name="another GPU", environment={**card, "gpu": "another GPU", "torch": "2.14"})
    later = made([1.0], [1.0], started_at="2026-01-01T05:00:00.000+00:00", environment={**card, "revision": "def"})
    said = mixture([made([1.0], [1.0], environment=card), other, later])
    assert said[0].startswith("From 2 machines: a GPU, a Xeon, 8 cores (2 cases); another GPU, a Xeon, 8 cores (1 case).")
    assert said[1] == "Measured with different versions: revision abc (2 cases), def (1 case); torch 2.13 (2 cases), 2.14 (1 case)."
    assert said[-1].startswith("Measured in 2 sittings, from: 2026-01-01 00:00 (2 cases), 2026-01-01 05:00 (1 case).")


def test_what_a_record_does_not_say_is_no_other_machine() -> None:
    known = {"cpu": "a Xeon", "cores": 8, "machine": "f00"}
    records = [
        made([1.0], [1.0], environment={}),
        made([1.0], [1.0], environment=known),
        made([1.0], [1.0], environment={"cpu": "a Xeon"}),
        made(status="skipped", evidence="not installed", device_name="elsewhere"),
    ]
    assert mixture(records) == []
    twin = made([1.0], [1.0], environment={**known, "machine": "bad"})
    assert mixture([*records, twin])[0].startswith("From 2 machines: a GPU, a Xeon, 8 cores (3 cases); a GPU, a Xeon, 8 cores (1 case).")


def test_sessions_that_are_named_are_the_sittings() -> None:
    records = [made([1.0], [1.0], environment={"session": name}) for name in ("a", "a", "b")]
    assert mixture(records) == [
        "Measured in 2 sittings, from: 2026-01-01 00:00 (1 case), 2026-01-01 00:00 (2 cases). "
        "What drifted between them is part of the difference."
    ]
