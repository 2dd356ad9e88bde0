"""Files that commands write: whole or not at all, and what stood there stays until then."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from report_records import made

from inferometer.cli.main import main
from inferometer.cli.written_file import write_file
from inferometer.errors import RunError, UserError


@contextmanager
def disk_of(size_bytes: int) -> Iterator[None]:
    """No file grows beyond that, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("command", ["report", "estimate"])
def test_a_full_disk_leaves_what_stood_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    file, records = tmp_path / ("page.html" if command == "report" else "plot.svg"), tmp_path / "runs.jsonl"
    file.write_text("before")
    records.write_text(json.dumps(made([10.0], [2.0]).to_json()) + "\n")
    asked = {
        "report": ["report", str(records), "-o", str(file)],
        "estimate": ["estimate", "tiny-opt", "--device", "t4", "--decode-length", "4", "--plot", str(file)],
    }
    with disk_of(1000):
        assert main(asked[command]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("inferometer: error: --")
    assert said.err.endswith(f"{file}: File too large; make room, or name a file on another disk\n")
    assert file.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == [file.name, "runs.jsonl"]
    assert main(asked[command]) == 0
    assert file.read_text().startswith(("<!doctype html>", "<svg "))


def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("before")
    file.chmod(0o640)
    write_file("-o", file, b"after")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"after", 0o640)


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page.html")
    write_file("-o", tmp_path / "link", b"whole")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_bytes() == b"whole"
    reader, writer = os.pipe()
    try:
        write_file("-o", Path(f"/dev/fd/{writer}"), b"whole")
        assert os.read(reader, 100) == b"whole"
    finally:
        os.close(reader)
        os.close(writer)


def test_where_no_file_can_be(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "page.html"):
        with pytest.raises(UserError, match="name a file in a folder that you may write to") as caught:
            write_file("-o", path, b"")
        assert not isinstance(caught.value, RunError)
    assert list(tmp_path.iterdir()) == []
