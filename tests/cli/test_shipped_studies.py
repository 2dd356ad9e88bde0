"""Every study that comes along, at its tiny scale, as a user runs it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from inferometer.bench.study.library import shipped
from inferometer.cli.main import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["offload-schedules", "estimate-vs-measured", "tensor-parallel", "gpt3-latency", "backend-sweep"])
def test_every_table_and_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["study", "run", name, "--scale", "tiny", "-o", str(tmp_path)]) == 0, capsys.readouterr().err
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    study = shipped()[name].study("tiny")
    assert len(records) == len(list(study.cells()))
    assert {record["status"] for record in records} <= {"ok", "skipped"}
    for part in study.parts:
        mine = [record for record in records if record["part"] == part.name]
        assert all(record["evidence"] for record in mine if record["status"] == "skipped")
        assert part.name == "multi-gpu" or any(record["status"] == "ok" for record in mine), part.name
    tables = (tmp_path / "tables.md").read_text()
    headings = [line for line in tables.splitlines() if line.startswith("#")]
    for table in study.tables:
        # A title may name settings of its cases.
        pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(table["title"]))
        assert any(re.search(pattern, heading.replace("\\", "")) for heading in headings), table["title"]
    assert "Tables without records" not in tables
    page = (tmp_path / "report.html").read_text()
    assert study.title in html.unescape(page)
    assert len(page) < 2_000_000
    ok = [record for record in records if record["status"] == "ok"]
    assert all(record["bound"] is None or record["predicted"] is not None for record in ok)
