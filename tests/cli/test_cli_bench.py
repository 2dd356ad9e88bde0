from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.bench.backends import native
from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Record
from inferometer.cli.main import main
from inferometer.engine.device import supports
from inferometer.model import store
from tiny_models import tiny_model


def arguments(tmp_path: Path, family: str = "llama", *, generates: bool = True, **changes: str) -> list[str]:
    """A small case, with other values of its options."""
    options = {"weights": "dummy", "dtype": "float32", "device": "cpu", "runs": "2", "sequence_length": "8"} | changes
    if generates:
        options.setdefault("decode_length", "4")
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return ["bench", str(tiny_model(tmp_path, family)), "--batch-size", "1", "--batch-size", "2", *words]


def test_the_three_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert "\r" not in out
    assert "| Model              | tiny-llama |" in out
    assert "| Sequence Length    | 8          |" in out
    assert [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("| ") and line.split("|")[1].strip()][13:] == [
        "Step", "Prefill", "Decode (token)", "Decode (total)", "Step", "Prefill", "Decode",
    ]  # fmt: skip


def test_json_is_one_document_of_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(tmp_path), "--json", "--backend", "native", "--backend", "hf", "--backend", "native"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["records"]
    records = [Record.from_json(value) for value in document["records"]]
    assert [(r.backend, r.batch_size) for r in records] == [("native", 1), ("hf", 1), ("native", 2), ("hf", 2)]


def test_output_is_appended_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "records.jsonl"
    for _ in range(2):
        assert main([*arguments(tmp_path), "--output", str(file)]) == 0
    assert "| Step" in capsys.readouterr().out
    assert [r.batch_size for r in read_records(file)] == [1, 2, 1, 2]


def test_a_case_that_failed_is_exit_3_and_the_tables_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = native.open_backend

    def limited(*given: Any) -> Any:
        backend = opened(*given)
        prefill = backend.prefill

        def refuse(prompts: Any, params: Any) -> None:
            if len(prompts) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            prefill(prompts, params)

        backend.prefill = refuse  # type: ignore[method-assign]
        return backend

    monkeypatch.setattr(native, "open_backend", limited)
    assert main([*arguments(tmp_path), "--batch-size", "3"]) == 3
    rows = [line.split("|")[2:4] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows].count(["2", "OOM"]) == 5
    assert sum(row[0].strip() == "3" and "ms" in row[1] for row in rows) == 3


def test_forward_only_and_encoders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(tmp_path, generates=False), "--forward-only", "--loss"]) == 0
    assert "| Forward | 1 " in capsys.readouterr().out
    assert main(arguments(tmp_path, "bert", generates=False)) == 0
    assert "| Forward | 1 " in capsys.readouterr().out


@pytest.mark.parametrize(("family", "more"), [("llama", ["--forward-only"]), ("bert", [])])
def test_no_tokens_are_asked_of_what_generates_none(
    tmp_path: Path, family: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(tmp_path, family, decode_length="8"), *more]) == 2  # though it is the default
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--decode-length is how many tokens a model generates" in err
    assert "leave it out" in err


def test_decode_length_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, decode_length="1")) == 0
    assert "| Decode (" not in capsys.readouterr().out


def unsupported() -> str | None:
    return next((name for name in ("float16", "bfloat16") if not supports(torch.device("cpu"), getattr(torch, name))), None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sequence_length": "61"}, "--sequence-length 61"),
        ({"dtype": "float8"}, "--dtype float8"),
        ({"device": "nosuch"}, "--device nosuch"),
        ({"output": "/nonexistent/file"}, "--output"),
        ({"concurrency": "2"}, "--concurrency is of a server"),
        pytest.param(
            {"dtype": unsupported() or ""},
            "--dtype",
            marks=pytest.mark.skipif(unsupported() is None, reason="this processor has all formats"),
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, change: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, **change)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("wrong", [("--device", "nonsense"), ("--dtype", "float8")])
def test_nothing_is_fetched_for_a_machine_that_is_not_here(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str) -> Path:
        raise AssertionError(f"{name} was fetched")

    monkeypatch.setattr(store, "fetch", fetch)
    assert main(["bench", *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"{' '.join(wrong)} is unknown" in err


def test_a_servers_load_has_one_name_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--backend", "http", "--url", "http://127.0.0.1:1", "--concurrency", "2", "--batch-size", "4"]) == 2
    assert "--concurrency and --batch-size are the same of a server" in capsys.readouterr().err


def test_unknown_models_and_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00")
    for model in ("no-such-model", str(tmp_path / "empty"), str(tmp_path / "broken.gguf"), "opt-1.3b-please"):
        assert main(["bench", model]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1


@pytest.mark.parametrize("columns", [100, pytest.param(0, marks=pytest.mark.slow)])
def test_a_terminal_gets_a_progress_bar(tmp_path: Path, columns: int) -> None:
    given = [sys.executable, "-m", "inferometer", *arguments(tmp_path)]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
        os.environ["COLUMNS"] = "80"
        os.execv(sys.executable, given)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"bench:" in shown
    assert b"/6 [" in shown  # 2 batch sizes, each 1 warm-up and 2 runs
    assert b"| Step" in shown


def test_a_full_disk_costs_the_file_and_not_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(tmp_path), "--output", "/dev/full", "--json"]) == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out)["records"]) == 2
    assert err == "inferometer: error: --output /dev/full: No space left on device; 0 of 2 records are in it\n"


def test_an_admission_by_its_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--batch-size", "4", "--admission", "diagonal", "--group-size", "2", "--num-groups", "2"]
    assert main([*arguments(tmp_path), *given, "--json"]) == 0
    records = [Record.from_json(value) for value in json.loads(capsys.readouterr().out)["records"]]
    assert [(r.admission, r.group_size, r.num_groups, r.status) for r in records] == [("diagonal", 2, 2, "ok")] * 3
    assert all(r.total_ms is not None and r.prefill_ms is None and r.pages_peak == r.batch_size for r in records)
    assert main([*arguments(tmp_path), *given]) == 0
    out = capsys.readouterr().out
    assert "| Admission          | diagonal" in out
    assert "| Total | 1 " in out
    assert "| Prefill" not in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--admission", "spiral"], "--admission"),
        (["--admission", "zigzag", "--backend", "hf"], "--backend hf"),
        (["--admission", "zigzag", "--forward-only"], "--forward-only"),
        (["--admission", "continuous", "--num-groups", "2"], "--num-groups"),
        (["--admission", "row", "--num-groups", "2"], "--num-groups"),
        (["--admission", "zigzag", "--group-size", "0"], "--group-size"),
        (["--group-size", "2"], "--group-size"),
    ],
)
def test_an_admission_that_means_nothing_is_one_line(
    tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(tmp_path), *more]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_a_context_that_is_not_generated_to_has_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny-opt", "--weights", "dummy", "--decode-at", "5", "--sequence-length", "4"]) == 2
    assert "--sequence-length is of prompts, which --decode-at runs without" in capsys.readouterr().err
