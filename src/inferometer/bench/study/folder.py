"""The folder that a study's run writes into: the study as resolved, the records, and what is made of them."""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from inferometer.bench.records.journal import Journal, read_records, repair
from inferometer.bench.records.record import Record
from inferometer.bench.records.session import Session
from inferometer.bench.study.difference import differing
from inferometer.bench.study.file import StudyFile, read_study, resolved_text
from inferometer.errors import UserError

STUDY, RECORDS, TABLES, PAGE = "study.toml", "records.jsonl", "tables.md", "report.html"

Key = tuple[str | None, str | None, str]
_SAME: Final = {"revision": "code", "machine": "machine"}


class StudyFolder:
    """A folder that this process alone writes to, until it is closed.

    `records` are those that are in it. `say` is told what a user should know of: a line torn by a crash, records of another study,
    of other code or of another machine. Records of an earlier run that is not to be gone on with are put aside, never lost.
    Raises UserError where it cannot be written, or another run is at work in it.
    """

    def __init__(self, path: Path, document: Mapping[str, Any], session: Session, *, resume: bool, say: Callable[[str], None]) -> None:
        self.path = path
        self._open = ExitStack()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock()
            self.records = self._earlier(resume=resume, say=say)
            self._compare(document, session, say)
            self._write(STUDY, resolved_text(document))
            self._journal = self._open.enter_context(Journal(path / RECORDS, "-o"))
        except OSError as error:
            self._open.close()
            raise UserError(f"-o {path}: {error.strerror}; name a folder that you may write to") from error
        except BaseException:
            self._open.close()
            raise

    def append(self, record: Record) -> None:
        """Adds a record and returns when the disk has it. Raises OSError where it cannot, as when it is full."""
        self._journal.append(record)
        self.records.append(record)

    def write(self, name: str, text: str) -> Path:
        """Writes a file of the folder as a whole or not at all, and returns its path. Raises OSError where it cannot."""
        self._write(name, text)
        return self.path / name

    def close(self) -> None:
        """Lets others write."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lock(self) -> None:
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._open.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"-o {self.path}: another run is writing there; wait for its end, or name another folder") from None

    def _earlier(self, *, resume: bool, say: Callable[[str], None]) -> list[Record]:
        path = self.path / RECORDS
        if not path.exists() or not path.stat().st_size:
            return []
        if not resume:
            aside = next(other for number in count(1) if not (other := self.path / f"records.{number}.jsonl").exists())
            path.rename(aside)
            say(f"{path}: the records of an earlier run are now in {aside.name}; --resume goes on with a run instead")
            return []
        torn = repair(path)
        if torn:
            say(f"{path}: the last line was torn ({torn} bytes) and is gone; its case is measured again")
        return read_records(path) if path.stat().st_size else []

    def _compare(self, document: Mapping[str, Any], session: Session, say: Callable[[str], None]) -> None:
        if not self.records:
            return
        before = self.path / STUDY
        text = before.read_text(encoding="utf-8-sig", errors="replace") if before.exists() else ""
        if text != resolved_text(document):
            other = _differing(text, document)
            differs = f" ({other})" if other else ""
            say(f"{before}: the study was another one when its records were measured{differs}; cases that both have are not measured again")
        for name, what in _SAME.items():
            others = {str(record.environment.get(name)) for record in self.records if record.status != "skipped"} - {getattr(session, name)}
            if others:
                say(f"{self.path / RECORDS}: holds records of another {what} than this ({name} {', '.join(sorted(others))}); tables say so")

    def _write(self, name: str, text: str) -> None:
        # Whoever reads meanwhile sees the old file or the new one.
        part = self.path / f".{name}.part"
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path / name)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _differing(text: str, document: Mapping[str, Any]) -> str:
    """What of a resolved study is another in an earlier one's text; "" where that is none."""
    try:
        earlier = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ""
    return differing(earlier, tomllib.loads(resolved_text(document))) if earlier else ""


def read_folder(path: Path) -> tuple[StudyFile, list[Record]]:
    """The study and the records of a folder, without changing it. Raises UserError where it is none, or holds no record."""
    try:
        text = (path / STUDY).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path} is no folder of a study's run: it has no {STUDY}; name the folder given as -o") from None
    return read_study(text, path.resolve().name, str(path / STUDY), measured=True), read_records(path / RECORDS)


def latest(records: Iterable[Record]) -> dict[Key, Record]:
    """The last record of every question, in the order in which the questions were first answered."""
    found: dict[Key, Record] = {}
    for record in records:
        found[key_of(record)] = record
    return found


def key_of(record: Record) -> Key:
    """What is measured once."""
    return (record.part, record.column, record.case_id)
