"""README.md shows the studies whose records lie under results/, and what lies there is what a run wrote."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from report_records import answered, made

from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Record
from inferometer.bench.study.file import resolved_text
from inferometer.bench.study.library import find_study
from inferometer.cli.main import main

ROOT = Path(__file__).resolve().parent.parent


class Done(NamedTuple):
    """How the script ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, root: Path = ROOT) -> Done:
    """The script of a repository, without a process of its own: its imports are most of what one costs."""
    path = root / "benchmarks" / "study_results.py"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = runpy.run_path(str(path))["main"](list(arguments))
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository of the page and the script alone."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("README.md", "benchmarks/study_results.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def ran(folder: Path, name: str) -> Path:
    """A folder as a run of the tiny study leaves it, with a record that was measured again."""
    file = find_study(name)
    records = answered(file.study("tiny"))
    folder.mkdir()
    (folder / "study.toml").write_text(resolved_text(file.resolved("tiny")))
    lines = [replace(records[0], seed=7), *records]
    (folder / "records.jsonl").write_text("".join(json.dumps(each.to_json()) + "\n" for each in lines))
    return folder


def around(text: str) -> tuple[str, str, str]:
    """What stands before the studies' tables, they themselves, and what stands after."""
    before, _, rest = text.partition("<!-- studies -->\n")
    shown, _, after = rest.partition("<!-- /studies -->")
    return before, shown, after


def test_the_page_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "study_results.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_is_kept_shown_and_read_again(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpt3-latency", "estimate-vs-measured", "backend-sweep"):
        assert run("--add", str(ran(copy / f"run of {name}", name)), root=copy).returncode == 0
    kept = copy / "results" / "backend-sweep"
    assert read_records(kept / "records.jsonl") == read_records(copy / "run of backend-sweep" / "records.jsonl")[1:]
    before, shown, after = around((copy / "README.md").read_text())
    assert (before, after) == around((ROOT / "README.md").read_text())[::2]
    # The two that users compare by, the first one first; the rest is named.
    stacks, sizes = shown.index("### Backends over batch sizes"), shown.index("### Latency of GPT-3's sizes")
    assert stacks < sizes < shown.index("`inferometer study show results/estimate-vs-measured` (6 of 6)")
    assert shown.count("\n### ") == 2
    # How often its cases ran, of those that ran: a line of one run has no spread.
    for name, after in zip(("backend-sweep", "gpt3-latency"), shown.split("\n### ")[-2:], strict=True):
        counts = sorted({each.runs for each in read_records(copy / "results" / name / "records.jsonl")})
        assert f"; {counts[0]}{f' to {counts[-1]}' if counts[1:] else ''} runs a case; " in after
    assert "#### Throughput (tokens/sec | msec/token)\n\n| batch_size | HF (fp32)" in shown
    assert "#### Time per token (ms), batch_size=1: stacks beside each other\n\n| Model Name     | native | hf" in shown
    assert run("--check", root=copy).returncode == 0
    assert main(["study", "show", str(kept)]) == 0
    assert "| batch_size | HF (fp32)" in capsys.readouterr().out


def test_folders_that_shared_a_study_are_one(copy: Path) -> None:
    whole = ran(copy / "whole", "backend-sweep")
    lines = (whole / "records.jsonl").read_text().splitlines(keepends=True)
    for name, kept in (("first", lines[:4]), ("second", lines[1:])):
        (copy / name).mkdir()
        (copy / name / "study.toml").write_bytes((whole / "study.toml").read_bytes())
        (copy / name / "records.jsonl").write_text("".join(kept))
    assert run("--add", *(str(copy / name) for name in ("first", "second")), root=copy).returncode == 0
    kept = copy / "results" / "backend-sweep" / "records.jsonl"
    # The first line was measured again, by the second folder.
    assert read_records(kept) == read_records(whole / "records.jsonl")[1:]


def test_a_study_put_together_claims_no_effort_that_some_of_its_records_had_not(copy: Path) -> None:
    whole = ran(copy / "whole", "backend-sweep")
    text = (whole / "study.toml").read_text()
    records = read_records(whole / "records.jsonl")[1:]
    often = [replace(each, started_at="2025-01-01") for each in records[:4]]
    once = [made(**asked(each), runs=1, status="oom", evidence="it was", started_at="2027-01-01") for each in records[4:]]
    for name, kept in (("often", often), ("once", once)):
        (copy / name).mkdir()
        runs = kept[0].runs
        (copy / name / "study.toml").write_text(re.sub(r"(?m)^runs = \d+$", f"runs = {runs}", text))
        (copy / name / "records.jsonl").write_text("".join(json.dumps(each.to_json()) + "\n" for each in kept))
    assert run("--add", str(copy / "often"), root=copy).returncode == 0
    kept = copy / "results" / "backend-sweep" / "study.toml"
    assert tomllib.loads(kept.read_text()) == tomllib.loads((copy / "often" / "study.toml").read_text())
    assert run("--add", *(str(copy / name) for name in ("often", "once")), root=copy).returncode == 0
    assert "runs" not in tomllib.loads(kept.read_text())["fixed"]
    assert "of runs each record says its own" in kept.read_text()
    # And so it stays when a run is added to what is there.
    assert run("--add", str(kept.parent), str(copy / "once"), root=copy).returncode == 0
    assert "runs" not in tomllib.loads(kept.read_text())["fixed"]


def asked(record: Record) -> dict[str, Any]:
    """The question that a record answers."""
    return {name: getattr(record, name) for name in ("study", "part", "column", "case_id", "model", "batch_size")}


def without(record: Record, started_at: str) -> Record:
    """The same case where its stack is not installed."""
    return made(**asked(record), status="skipped", evidence="it needs a package", started_at=started_at)


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_the_newest_answer_to_a_question_stays(copy: Path, order: tuple[str, str]) -> None:
    """Whatever order the folders come in, and a measurement before the word that somewhere else it could not be made."""
    whole = ran(copy / "whole", "backend-sweep")
    one, two, three, *_ = read_records(whole / "records.jsonl")[1:]
    given = {
        "old": [replace(one, started_at="2025-01-01"), two],
        "new": [replace(one, started_at="2027-01-01"), without(two, "2027-01-01"), without(three, "2025-01-01")],
    }
    for name, records in given.items():
        (copy / name).mkdir()
        (copy / name / "study.toml").write_bytes((whole / "study.toml").read_bytes())
        (copy / name / "records.jsonl").write_text("".join(json.dumps(each.to_json()) + "\n" for each in records))
    assert run("--add", *(str(copy / name) for name in order), root=copy).returncode == 0
    kept = read_records(copy / "results" / "backend-sweep" / "records.jsonl")
    known = {each.column: (each.status, each.started_at[:4]) for each in kept}
    assert known == {one.column: ("ok", "2027"), two.column: ("ok", "2026"), three.column: ("skipped", "2025")}
    # What is there is gone on with, and what one machine lacked is of no interest once another has run the column.
    (copy / "old" / "records.jsonl").write_text(json.dumps(replace(three, seed=9, case_id="9" * 16).to_json()) + "\n")
    assert run("--add", str(copy / "results" / "backend-sweep"), str(copy / "old"), root=copy).returncode == 0
    kept = read_records(copy / "results" / "backend-sweep" / "records.jsonl")
    assert [(each.seed, each.status) for each in kept if each.column == three.column] == [(9, "ok")]


def test_a_stale_table_is_named_and_mended(copy: Path) -> None:
    run("--add", str(ran(copy / "run", "tensor-parallel")), root=copy)
    page = copy / "README.md"
    fresh = page.read_text()
    assert fresh.count("| 10.00 ms") > 2
    page.write_text(fresh.replace("| 10.00 ms", "| 9.00 ms"))
    done = run("--check", root=copy)
    assert (done.returncode, done.stderr) == (1, "README.md is stale: run python benchmarks/study_results.py\n")
    assert run(root=copy).returncode == 0
    assert page.read_text() == fresh


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--add", "nowhere"), "is no folder of a study's run"), (("--add",), "use no argument"), (("--wrong",), "use no argument")],
)
def test_a_mistake_is_one_line(copy: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments, root=copy)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
