"""The folder of a study's run: nothing that was measured is lost, nothing is mixed without a word."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from example_records import failed, record
from hypothesis import given
from hypothesis import strategies as st
from studies import STUDY as TEXT

from inferometer.bench.records.journal import read_records, repair
from inferometer.bench.records.session import Session
from inferometer.bench.study.file import read_study
from inferometer.bench.study.folder import RECORDS, STUDY, StudyFolder, latest, read_folder
from inferometer.bench.study.library import find_study
from inferometer.errors import UserError

DOCUMENT = read_study(TEXT, "mine", "mine.toml").resolved("tiny")
FACTS = {"session": "s", "machine": "m", "revision": "r"}


def folder(path: Path, said: list[str] | None = None, *, resume: bool = False, document: Any = None, **facts: str) -> StudyFolder:
    session = Session(**{**FACTS, **facts})
    return StudyFolder(path, document or DOCUMENT, session, resume=resume, say=[].append if said is None else said.append)


def of(case: str = "a", **changes: Any) -> Any:
    return record(case_id=case, part="sweep", column="one", environment=FACTS, **changes)


def test_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine"
    with folder(path) as made:
        made.append(of())
        made.write("tables.md", "# T\n")
    file, records = read_folder(path)
    assert file.study().name == "mine"
    assert file.resolved() == DOCUMENT
    assert records == [of()]
    assert (path / "tables.md").read_text() == "# T\n"


def test_a_mark_of_byte_order_changes_nothing(tmp_path: Path) -> None:
    with folder(tmp_path) as made:
        made.append(of())
    for name in (STUDY, RECORDS):
        (tmp_path / name).write_text((tmp_path / name).read_text(), encoding="utf-8-sig")
    assert find_study(str(tmp_path / STUDY)).resolved() == read_folder(tmp_path)[0].resolved() == DOCUMENT
    said: list[str] = []
    with folder(tmp_path, said, resume=True) as again:
        assert again.records == [of()]
    assert said == []


def test_what_a_package_that_is_not_here_has_run_can_be_read(tmp_path: Path) -> None:
    with folder(tmp_path) as made:
        made.append(of(backend="theirs"))
    (tmp_path / STUDY).write_text((tmp_path / STUDY).read_text().replace('backend = "hf"', 'backend = "theirs"'))
    file, records = read_folder(tmp_path)
    assert "theirs" in {cell.settings["backend"] for cell in file.study().cells()}
    assert records == [of(backend="theirs")]


def test_records_of_an_earlier_run_are_gone_on_with_or_put_aside(tmp_path: Path) -> None:
    with folder(tmp_path) as made:
        made.append(of())
    said: list[str] = []
    with folder(tmp_path, said, resume=True) as again:
        assert again.records == [of()]
        again.append(of("b"))
    assert said == []
    assert [each.case_id for each in read_records(tmp_path / RECORDS)] == ["a", "b"]
    for number in (1, 2):
        with folder(tmp_path, said) as fresh:
            assert fresh.records == []
            fresh.append(of("c"))
        assert f"the records of an earlier run are now in records.{number}.jsonl" in said.pop()
    assert [each.case_id for each in read_records(tmp_path / "records.1.jsonl")] == ["a", "b"]
    assert [each.case_id for each in read_records(tmp_path / "records.2.jsonl")] == ["c"]


def test_to_resume_what_was_never_begun_is_to_begin(tmp_path: Path) -> None:
    with folder(tmp_path, resume=True) as made:
        assert made.records == []


@given(cut=st.integers(1, 400))
def test_a_torn_line_is_taken_off_with_a_word(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn")
    with folder(path) as made:
        made.append(of())
        made.append(of("b"))
    content = (path / RECORDS).read_bytes()
    whole = content.index(b"\n") + 1
    (path / RECORDS).write_bytes(content[:-cut] if len(content) - cut > whole else content[: whole + 1])
    said: list[str] = []
    with folder(path, said, resume=True) as again:
        kept = [each.case_id for each in again.records]
        again.append(of("c"))
    # A line that lacks its end alone is whole.
    assert kept == (["a", "b"] if cut == 1 else ["a"])
    assert len(said) == (0 if cut == 1 else 1)
    assert all("the last line was torn" in line for line in said)
    assert [each.case_id for each in read_records(path / RECORDS)] == [*kept, "c"]


def test_nothing_is_taken_off_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert repair(path) == 0
    for content in (b"", b'{"a": 1}\n', b'{"a": 1}'):
        path.write_bytes(content)
        assert repair(path) == 0
        assert path.read_bytes() == content
    path.write_bytes(b'{"a": 1}\n12')
    assert repair(path) == 2
    assert path.read_bytes() == b'{"a": 1}\n'


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with folder(tmp_path), pytest.raises(UserError, match="another run is writing there"):
        folder(tmp_path, resume=True)
    with folder(tmp_path, resume=True):
        pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": "other"}, "records of another machine than this"),
        ({"revision": "other"}, "records of another code than this"),
        ({"document": {**DOCUMENT, "title": "another"}}, "the study was another one"),
    ],
)
def test_a_resume_with_another_study_code_or_machine_says_so(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with folder(tmp_path) as made:
        made.append(of())
    said: list[str] = []
    with folder(tmp_path, said, resume=True, **changes):
        pass
    assert len(said) == 1
    assert words in said[0]
    assert (tmp_path / STUDY).read_text().count("another") == ("document" in changes)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"-o .*file: File exists; name a folder that you may write to"):
        folder(tmp_path / "file")


def test_a_full_disk_is_told_by_the_record_that_it_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder(tmp_path) as made:
        made.append(of())

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            made.append(of("b"))
        assert made.records == [of()]


def test_a_resume_with_another_study_says_what_differs(tmp_path: Path) -> None:
    def said_of(earlier: dict[str, Any]) -> str:
        said: list[str] = []
        with folder(tmp_path, document=earlier) as made:
            made.append(of())
        with folder(tmp_path, said, resume=True):
            pass
        (line,) = [line for line in said if "another one" in line]
        return line.rpartition("were measured")[2].rpartition("; ")[0]

    file = read_study(TEXT, "mine", "mine.toml")
    runs = DOCUMENT["fixed"].get("runs")
    assert said_of(file.resolved("tiny", {"runs": 7})) == f" (runs (7, now {'none' if runs is None else runs}))"
    assert said_of({**DOCUMENT, "title": "another"}) == f" (title ('another', now {DOCUMENT['title']!r}))"
    part, *others = DOCUMENT["part"]
    column, *rest = part["columns"]
    changed = {**part, "columns": [{**column, "backend": "theirs"}, *rest]}
    name = f"{part['name']}.{column['name']}"
    assert said_of({**DOCUMENT, "part": [changed, *others]}) == f" ({name}.backend ('theirs', now {column['backend']!r}))"
    assert said_of({**DOCUMENT, "part": [{**part, "columns": rest}, *others]}) == f" ({name} (only now))"


def test_what_is_no_folder_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no study.toml; name the folder"):
        read_folder(tmp_path)
    with folder(tmp_path):
        pass
    with pytest.raises(UserError, match="holds no record"):
        read_folder(tmp_path)


def test_the_last_answer_to_a_question_counts() -> None:
    skipped = failed("skipped", "no such package", case_id="a", part="sweep", column="one")
    assert list(latest([skipped, of("b"), of("a")]).values()) == [of("a"), of("b")]
    other = of("a", study="x")
    assert len(latest([of("a"), other])) == 1


def test_a_folder_is_read_by_others_while_it_is_written(tmp_path: Path) -> None:
    with folder(tmp_path) as made:
        made.append(of())
        assert json.loads((tmp_path / RECORDS).read_text())["case_id"] == "a"
        assert len(read_folder(tmp_path)[1]) == 1
