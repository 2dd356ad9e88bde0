"""Studies in processes of their own: hung, crashed, starved and killed ones, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from odd_entries import install

STUDY = """
title = "Odd ends"
[fixed]
model = "tiny-opt"
weights = "dummy"
dtype = "float32"
device = "cpu"
sequence_length = 4
decode_length = 3
runs = 2
warmups = 0
[[part]]
name = "odd"
[part.axes]
batch_size = {batches}
"""


class Shell:
    """Runs the command line with the odd backends installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = install(folder / "site")
        self.environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "INFEROMETER_HOME": str(folder / "home")}

    def study(self, *backends: str, batches: str = "[1, 2]") -> str:
        path = self.folder / "odd.toml"
        columns = [f'[[part.columns]]\nname = "{backend}"\nbackend = "{backend}"\n' for backend in backends]
        path.write_text(STUDY.format(batches=batches) + "".join(columns))
        return str(path)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "inferometer", "study", "run", *arguments]
        return subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, cwd=self.folder, **options
        )

    def run(self, *arguments: str, **options: Any) -> tuple[int, list[dict[str, Any]], str]:
        process = self.start(*arguments, "--json", **options)
        out, err = process.communicate(timeout=120)
        return process.returncode, json.loads(out)["records"] if out else [], err

    def records(self, study: str = "odd") -> list[dict[str, Any]]:
        path = self.folder / "inferometer-studies" / study / "records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def until(condition: Callable[[], bool]) -> None:
    """Returns when it holds. What it waits for happens in other processes, which nothing here can be told of."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == parent and rest.split()[0] != "Z":
            found.append(int(name.split()[0]))
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_way_to_end(shell: Shell) -> None:
    # What hangs has a model that is loaded, so that its limit can be short on a slow machine too.
    study = Path(shell.study("odd", "odd-missing"))
    limits = {1: 100, 2: 100, 4: 2, 3: 100, 5: 100, 6: 100}
    points = ", ".join(f"{{ batch_size = {size}, timeout_s = {limit} }}" for size, limit in limits.items())
    study.write_text(study.read_text().replace("batch_size = [1, 2]", f"size = [{points}]"))
    code, records, said = shell.run(str(study), "--gpu-memory", "1.4")
    assert code == 3, said
    found = {(record["column"], record["batch_size"]): (record["status"], str(record["evidence"])) for record in records}
    assert len(found) == len(records) == 12
    expected = {
        1: ("ok", "None"),
        2: ("error", "RuntimeError: it broke"),
        3: ("error", "the process was ended by SIGSEGV, while it ran; its last words: one last word"),
        4: ("timeout", "no end within 2 s (as asked), while it ran"),
        5: ("ok", "None"),
        6: ("oom", "DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    }
    assert {size: found["odd", size][0] for size in expected} == {size: status for size, (status, _) in expected.items()}, found
    assert all(words in found["odd", size][1] for size, (_, words) in expected.items()), found
    assert "can't allocate memory" in found["odd", 6][1]
    for size in expected:
        assert found["odd-missing", size][0] == "skipped"
        assert "pip install 'no-such-package'" in found["odd-missing", size][1]
    assert {record["memory_limit"] for record in records} == {int(1.4 * 2**30)}


def test_killed_half_way_and_gone_on_with(shell: Shell) -> None:
    sizes = (1, 2, 5, 7, 8, 9, 10)
    study = shell.study("odd", "odd-missing", batches=str(list(sizes)))
    process = shell.start(study)
    until(lambda: len(shell.records()) >= 4)
    started = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert started
    until(lambda: not any(alive(child) for child in started))
    before = shell.records()
    with (shell.folder / "inferometer-studies" / "odd" / "records.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "case_')
    code, records, said = shell.run(study, "--resume")
    assert code == 3
    assert "the last line was torn" in said
    written = shell.records()
    assert written[: len(before)] == before
    keys = Counter((record["part"], record["column"], record["case_id"]) for record in written)
    assert set(keys.values()) == {1}
    asked = {(column, size) for column in ("odd", "odd-missing") for size in sizes}
    assert {(record["column"], record["batch_size"]) for record in written} == asked
    assert sorted(record["case_id"] for record in records) == sorted(record["case_id"] for record in written)
    assert shell.run(study, "--resume")[1] == records
    assert shell.records() == written


def test_an_interrupt_leaves_no_process_and_all_that_was_measured(shell: Shell) -> None:
    study = shell.study("odd", batches="[1, 4]")
    process = shell.start(study)
    until(lambda: len(shell.records()) == 1)
    started = children(process.pid)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "inferometer: interrupted"
    assert started
    assert not any(alive(child) for child in started)
    assert [record["status"] for record in shell.records()] == ["ok"]


def test_a_budget_that_is_spent_leaves_the_rest_for_later(shell: Shell) -> None:
    study = shell.study("odd", batches="[1, 5]")
    code, records, said = shell.run(study, "--budget-minutes", "0.00001")
    assert (code, len(records)) == (0, 1)
    assert "--budget-minutes is spent with 1 cases left; run the same command with --resume to go on" in said
    code, records, said = shell.run(study, "--resume", "--isolate")
    assert (code, [record["status"] for record in records]) == (0, ["ok", "ok"])


@pytest.mark.slow
def test_the_edge_of_the_batch(shell: Shell) -> None:
    study = shell.study("odd", batches="[5]")
    code, records, said = shell.run(study, "--gpu-memory", "1.9", "--find-edge")
    assert code == 3
    assert "odd, odd: a batch of 7 fits, one of 8 does not" in said
    edge = {record["batch_size"]: record["status"] for record in records if record["part"] == "odd edge"}
    assert (edge[7], edge[8]) == ("ok", "oom")
    assert [record["batch_size"] for record in records if record["part"] == "odd"] == [5]
    assert shell.run(study, "--gpu-memory", "1.9", "--find-edge", "--resume")[1] == records
