from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from example_records import failed, record

from inferometer.bench.records.journal import Journal, Sink, read_records, repair
from inferometer.errors import DamageWarning, UserError


def test_records_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first, second, third = record(), failed("oom"), record(batch_size=4)
    with Journal(path) as journal:
        journal.append(first)
        journal.append(second)
    with Journal(path) as journal:
        journal.append(third)
    assert read_records(path) == [first, second, third]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_record_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.append(record())
        assert synced == [path.stat().st_size]


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.append(record())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    with Journal(path) as journal:
        journal.append(record(batch_size=4))
    with pytest.warns(DamageWarning, match="line 2 is torn"):
        assert read_records(path) == [record(), record(batch_size=4)]


def test_a_record_whose_books_are_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    value = record().to_json()
    value["throughput"]["decode_tok_s"] *= 2
    path.write_text(json.dumps(record().to_json()) + "\n" + json.dumps(value) + "\n")
    with pytest.raises(UserError, match=r"records\.jsonl, line 2: .*decode_tok_s"):
        read_records(path)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--output"):
        Journal(tmp_path / "no" / "folder.jsonl")


@pytest.mark.parametrize("content", ["Dear diary\n", '{"index":0,"text":"a","job":"b"}\n', '{"records": []}\n', "[1]", "\n\n{\n", "\0\0"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"--output .*other\.jsonl: holds something other than records, one a line; name another file"):
        Journal(path)
    assert path.read_text() == content


@pytest.mark.parametrize("content", ["", "\n\n", '{"schema', '{"schema_version":1,"case', '\ufeff{"shared":{}}\n'])
def test_what_may_be_a_beginning_of_records_is_gone_on_with(tmp_path: Path, content: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(content)
    with Journal(path) as journal:
        journal.append(record())
    assert path.read_text().startswith(content)
    assert json.loads(path.read_text().splitlines()[-1]) == record().to_json()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl"):
        read_records(tmp_path / "none.jsonl")


def test_what_is_no_file_takes_records_as_well() -> None:
    """/dev/null has no disk behind it to sync with, a pipe no end to seek to."""
    with Journal(Path("/dev/null")) as journal:
        journal.append(record())
    reader, writer = os.pipe()
    with Journal(Path(f"/dev/fd/{writer}")) as journal:
        journal.append(record())
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert [json.loads(line)["status"] for line in lines] == ["ok"]


def test_a_sink_goes_on_past_a_full_disk() -> None:
    with Journal(Path("/dev/full")) as journal:
        sink = Sink(journal)
        for _ in range(3):
            sink.take(record())
    assert sink.kept == 0
    assert sink.failure is not None
    assert "No space left" in str(sink.failure)


@pytest.mark.parametrize("content", ["", "root:x:0:0\n", '{"torn": '])
def test_a_file_without_a_record_is_the_users_mistake(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(UserError, match="holds no record; name a file"):
        read_records(path)


@pytest.mark.parametrize("content", ["[]\n", "3\n", "null\n"])
def test_a_line_that_is_no_record_is_named_with_a_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other"
    path.write_text(json.dumps(record().to_json()) + "\n" + content)
    with pytest.raises(UserError, match="other, line 2: not a record; name a file"):
        read_records(path)


@pytest.mark.parametrize("torn", ["garbage", "[" * 100_000])
def test_a_damaged_line_is_passed_over_with_a_word(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "records.jsonl"
    line = json.dumps(record().to_json())
    path.write_text(f"{line}\n{torn}\n{json.dumps(record(batch_size=4).to_json())}\n")
    with pytest.warns(DamageWarning, match=r"records\.jsonl: line 2 is torn; it is left out"):
        assert read_records(path) == [record(), record(batch_size=4)]
    path.write_text(f"{line}\n{torn}")
    assert repair(path) == len(torn)
    assert path.read_text() == f"{line}\n"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("batch_size", None, "batch_size is None"),
        ("batch_size", "4", "batch_size is '4'"),
        ("batch_size", 0, "batch_size is 0, and must be at least 1"),
        ("sequence_length", 10**400, "sequence_length is 1000"),
        ("decode_only", 1, "decode_only is 1"),
        ("started_at", "yesterday", "started_at must be a time in ISO 8601, .* not 'yesterday'"),
    ],
)
def test_a_field_of_another_kind_is_named_and_not_what_python_makes_of_it(tmp_path: Path, name: str, value: object, words: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**record().to_json(), name: value}) + "\n")
    with pytest.raises(UserError, match=rf"line 1: {words}.*; leave the line out or measure the case again"):
        read_records(path)
