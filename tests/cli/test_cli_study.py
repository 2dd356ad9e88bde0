"""`inferometer study` as it is typed: what it prints, writes and returns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_worker import Workshop

from inferometer.bench.conduct.conductor import Conductor
from inferometer.bench.records.session import Session
from inferometer.bench.study.folder import StudyFolder
from inferometer.cli.main import main
from inferometer.cli.study_run import configure

STUDY = """
title = "One stack"
summary = "What one stack does."

[fixed]
model = "tiny-opt"
weights = "dummy"
dtype = "float32"
device = "cpu"
sequence_length = 4
decode_length = 3
runs = 3
warmups = 1

[[part]]
name = "sweep"
[part.axes]
batch_size = [1, 2]

[[part.columns]]
name = "ours"
backend = "native"

[[part.columns]]
name = "in shards"
backend = "native"
tensor_parallel = 3

[[table]]
part = "sweep"
title = "Throughput"
rows = "batch_size"
columns = "column"
cell = "{throughput:.1f}"

[scale.tiny]
fixed = { runs = 1 }
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A study's file, in an empty folder where the commands run. No GPU is looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "mine.toml").write_text(STUDY)
    return "mine.toml"


def test_a_study_from_its_file_to_its_tables(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", study]) == 0
    out, err = capsys.readouterr()
    folder = Path("inferometer-studies/mine")
    assert out == (folder / "tables.md").read_text()
    assert out.startswith("# One stack\n")
    assert "### Throughput" in out or "## Throughput" in out
    assert "--tensor-parallel 3 does not divide tiny-opt" in out
    assert "\x1b" not in out + err
    assert err.count("\n") == 4
    assert "[1/4] sweep, in shards, tiny-opt, batch 1, prompt 4, 3 new: skipped: " in err
    page = (folder / "report.html").read_text()
    assert "One stack" in page
    assert page.count("<script") >= 1
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert sorted((record["column"], record["batch_size"], record["status"], record["runs"]) for record in records) == [
        ("in shards", 1, "skipped", 3),
        ("in shards", 2, "skipped", 3),
        ("ours", 1, "ok", 3),
        ("ours", 2, "ok", 3),
    ]
    for record in records:
        assert (record["study"], record["part"]) == ("mine", "sweep")
        assert {"session", "machine", "revision"} <= set(record["environment"])
    ok = [record for record in records if record["status"] == "ok"]
    assert all(record["predicted"] is not None and record["checked"]["passed"] for record in ok)

    # A folder is shown, and to go on with it does nothing more.
    assert main(["study", "show", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("# One stack\n")
    assert main(["study", "run", study, "--resume", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {record["case_id"] for record in json.loads(out)["records"]} == {record["case_id"] for record in records}
    assert "4 of 4 cases have their records" in err
    assert len((folder / "records.jsonl").read_text().splitlines()) == 4


def test_a_run_of_a_part_leaves_what_others_left_in_the_tables(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("inferometer.cli.study_work.Conductor", partial(Conductor, start=Workshop()))
    other = Path(study).read_text().replace("tensor_parallel = 3", 'quantize = "int8"').replace("in shards", "in int8")
    Path(study).write_text(other)
    asked = ["study", "run", study, "--runs", "1", "--no-energy"]
    assert main([*asked, "--only", "ours"]) == 0
    assert "in int8" not in capsys.readouterr().out.split("## Throughput")[1].split("Predicted")[0]
    assert main([*asked, "--only", "in int8", "--resume", "--json"]) == 0
    assert {record["column"] for record in json.loads(capsys.readouterr().out)["records"]} == {"in int8"}
    tables = Path("inferometer-studies/mine/tables.md").read_text()
    assert "| batch_size | ours" in tables
    assert "in int8" in tables


def test_a_dry_run_runs_nothing(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", study, "--dry-run", "--runs", "7", "--scale", "tiny"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "| sweep | batch_size 1 | ours      |" in out
    assert "skipped: --tensor-parallel 3 does not divide tiny-opt" in out
    assert "4 cases: 2 expected ok, 2 expected skipped." in out
    assert not Path("inferometer-studies").exists()
    assert main(["study", "run", study, "--dry-run", "--runs", "7", "--json", "--only", "ours"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(case["batch_size"], case["runs"], case["status"], case["reason"]) for case in cases] == [
        (1, 7, "ok", None),
        (2, 7, "ok", None),
    ]
    assert all(case["predicted"]["seconds"] > 0 and case["predicted"]["peak_memory_bytes"] > 0 for case in cases)


def test_a_dry_run_says_what_would_not_fit(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", study, "--dry-run", "--gpu-memory", "0.001", "--only", "ours", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["status"] for case in cases] == ["oom", "oom"]
    assert all("GiB" in case["reason"] for case in cases)


def test_energy_is_left_out_where_that_is_asked(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    basis = []
    for option in ("--no-energy", "--resume"):
        assert main(["study", "run", study, "--only", "ours", "--runs", "1", "--json", option]) == 0
        records = json.loads(capsys.readouterr().out)["records"]
        basis.append({record["energy"]["basis"] for record in records})
    # It is no other case for that: to go on measures nothing again.
    assert basis == [{"none: it was not measured"}] * 2
    assert len(Path("inferometer-studies/mine/records.jsonl").read_text().splitlines()) == 2


def test_the_studies_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "list"]) == 0
    out = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("| ") and "document" not in line] == [
        "offload-schedules",
        "estimate-vs-measured",
        "tensor-parallel",
        "gpt3-latency",
        "backend-sweep",
    ]
    assert main(["study", "list", "--json"]) == 0
    studies: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["studies"]
    assert [each["document"] for each in studies] == ["000", "001", "002", "003", "004"]
    assert all(each["cases"]["tiny"] < each["cases"]["full"] for each in studies)
    assert all(each["gpu_minutes"] > 0 for each in studies)


@pytest.mark.parametrize("name", ["offload-schedules", "estimate-vs-measured", "tensor-parallel", "gpt3-latency", "backend-sweep"])
def test_a_card_of_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "show", name]) == 0
    out = capsys.readouterr().out
    assert "Reproduces the tables of document 00" in out
    assert "GPU minutes on one H100" in out
    assert "| column " in out


def test_a_card_says_what_is_left_out(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        Path(study).read_text().replace("[[table]]", '[[part.exclude]]\ncolumn = "ours"\nbatch_size = 2\nreason = "why not"\n\n[[table]]')
    )
    Path(study).write_text(text)
    assert main(["study", "show", study]) == 0
    assert "- sweep, ours, batch_size 2: why not" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing"], "no study 'nothing'"),
        (["run", "nothing.toml"], "nothing.toml: No such file"),
        (["run", "mine.toml", "--scale", "tin"], "--scale tin is not one of mine.toml; did you mean tiny?"),
        (["run", "mine.toml", "--runs", "0"], "--runs: must be at least 1"),
        (["run", "mine.toml", "--budget-minutes", "-1"], "--budget-minutes: must be a number above 0"),
        (["run", "mine.toml", "--only", "their"], "--only their is no part and no column"),
        (["run", "mine.toml", "--device", "cuda:9"], "--device cuda:9 does not exist"),
        (["run", "mine.toml", "-o", "mine.toml"], "-o mine.toml: File exists"),
        (["run", "wrong.toml"], "wrong.toml, line 2: titel: titel is not known here; did you mean title?"),
        (["show", "."], ". is no folder of a study's run: it has no study.toml"),
        (["walk"], "invalid choice: 'walk'"),
        ([], "ACTION"),
    ],
)
def test_wrong_usage_is_one_line(study: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.toml").write_text('\ntitel = "x"\n')
    assert main(["study", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("inferometer: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_disk_that_takes_no_more_is_one_clear_error(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inferometer.bench.records.journal.os.fsync", full)
    assert main(["study", "run", study, "--only", "in shards"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "inferometer: error: inferometer-studies/mine: No space left on device; 0 records are in it; go on with --resume\n"


def test_a_disk_that_has_room_for_the_records_alone_costs_the_documents(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = StudyFolder.write

    def full(folder: StudyFolder, name: str, text: str) -> Path:
        if name == "report.html":
            raise OSError(28, "No space left on device")
        return plain(folder, name, text)

    monkeypatch.setattr(StudyFolder, "write", full)
    monkeypatch.setattr("inferometer.cli.study_work.Conductor", partial(Conductor, start=Workshop()))
    assert main(["study", "run", study]) == 1
    out, err = capsys.readouterr()
    assert "## Throughput" in out
    said = "inferometer-studies/mine: No space left on device; all records are in it; make room, and --resume writes what is made of them"
    assert err.splitlines()[-1] == f"inferometer: error: {said}"


def test_what_is_written_in_part_does_not_stay(tmp_path: Path) -> None:
    """As of a disk that fills up: here the name is taken by a folder."""
    with StudyFolder(tmp_path / "a", {}, Session(session="now", machine="one", revision="code"), resume=False, say=print) as folder:
        (tmp_path / "a" / "tables.md").mkdir()
        with pytest.raises(OSError, match=r"tables\.md"):
            folder.write("tables.md", "text")
    assert not list((tmp_path / "a").glob(".*.part"))


def test_every_option_is_explained() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    configure(parser)
    assert all(action.help for action in parser._actions)
