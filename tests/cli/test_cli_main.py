from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferometer import __version__
from inferometer.cli import main as module
from inferometer.cli.main import main
from inferometer.errors import ModelError, UserError

SOURCE = Path(__file__).parents[2] / "src"


def planted(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Makes `inferometer models` do something else."""
    monkeypatch.setattr(module, "_module", lambda name: SimpleNamespace(configure=lambda parser: None, run=lambda arguments: action()))


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err.startswith("inferometer: ")
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["nosuch"], "nosuch"),
        (["bench", "--nosuch"], "--nosuch; see inferometer bench --help"),
        (["--nosuch", "bench"], "--nosuch; see inferometer --help"),
        (["study", "list", "nosuch"], "nosuch; see inferometer study list --help"),
        (["generate", "one", "--raw", "two"], "two (one PROMPT stands beside the other); see inferometer generate --help"),
        (["estimate", "opt-125m", "--device", "l4", "--device", "t4"], "--device is given twice; inferometer estimate takes one"),
        (["estimate", "opt-125m", "--batch-size", "1", "--batch-size", "8"], "--batch-size is given twice"),
        (["estimate", "--device", "l4", "--plot", "a.png"], "a.png: what is drawn is an SVG image"),
        (["validate", "--plot", "a.png"], "a.png: what is drawn is an SVG image"),
        (["bench", "--batch-size", "0"], "--batch-size: must be at least 1, not 0"),
        (["bench", "--batch-size", "x"], "--batch-size: must be a whole number"),
        (["bench", "--batch-size"], "--batch-size"),
        (["bench", "--backend", "vllm"], "--backend"),
        (["bench", "--top-p", "1.5"], "--top-p must be"),
        (["bench", "--temperature", "-1"], "--temperature must be"),
        (["bench", "--seed", "-1"], "--seed"),
        (["bench", "--gpu-memory", "0"], "--gpu-memory"),
        (["bench", "--loss"], "--forward-only"),
        (["bench", "--run", "3"], "--run"),  # no abbreviations: a new option must not change what a script means
        (["generate", "--max-new-tokens", "0", "x"], "--max-new-tokens"),
        (["generate", "--max-new-tokens", "2", "--min-new-tokens", "3", "x"], "--min-new-tokens must be at most --max-new-tokens (2)"),
        (["generate", "--stop", "", "x"], "stop"),
        (["generate", "--raw", "--system", "s", "x"], "--system"),
        (["models", "fetch"], "NAME"),
        (["models", "fetch", "nosuch"], "nosuch"),
        (["estimate", "opt-125m", "--device", ""], "no such device"),
        (["study", "run", "/"], "/ is a folder; name a study"),
        (["report", "a" * 300], "File name too long; name another"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    line = one_line(capsys)
    assert line.startswith("inferometer: error: ")
    assert words in line


@pytest.mark.parametrize("error", [UserError("no\n  such thing"), ModelError("no such thing")])
def test_a_users_error_is_exit_2(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> int:
        raise error

    planted(monkeypatch, action)
    assert main(["models"]) == 2
    assert one_line(capsys) == "inferometer: error: no such thing\n"


@pytest.mark.parametrize(("package", "extra"), [("torch", "run"), ("tokenizers", "run"), ("transformers", "hf")])
def test_a_missing_package_names_its_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> int:
        raise ModuleNotFoundError(f"No module named '{package}.nn'", name=f"{package}.nn")

    planted(monkeypatch, action)
    assert main(["models"]) == 2
    assert f"{package}, which is not installed; pip install 'inferometer[{extra}]'" in one_line(capsys)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), 2, "error: /a/b: Permission denied; name another"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/a/b"), 2, "error: /a/b: Not a directory; name another"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), 1, "No space left on device"),
        (PermissionError(errno.EPERM, "Operation not permitted"), 1, "PermissionError"),
    ],
)
def test_a_path_that_cannot_be_looked_at_is_told_wherever_that_is_found_out(
    error: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> int:
        raise error

    planted(monkeypatch, action)
    assert main(["models"]) == code
    assert words in one_line(capsys)


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> int:
        raise KeyboardInterrupt

    planted(monkeypatch, action)
    assert main(["models"]) == 130
    assert one_line(capsys) == "inferometer: interrupted\n"


def test_the_unexpected_is_one_line_and_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> int:
        raise ZeroDivisionError("division by zero")

    planted(monkeypatch, action)
    monkeypatch.delenv("INFEROMETER_DEBUG", raising=False)
    assert main(["models"]) == 1
    assert "ZeroDivisionError: division by zero" in one_line(capsys)
    monkeypatch.setenv("INFEROMETER_DEBUG", "1")
    assert main(["models"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"inferometer {__version__}\n"
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run([sys.executable, *arguments], text=True, env=environment, timeout=60, check=False, **options)


def test_a_reader_that_leaves_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "inferometer", "models", "--json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_start_up_loads_none_of_the_heavy_packages() -> None:
    code = (
        "import sys\nfrom inferometer.cli.main import main\ncode = main(['bench', '--help'])\n"
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'tqdm', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = command("-c", code, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_start_up_takes_less_than_half_a_second() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert command("-m", "inferometer", "--version", capture_output=True).returncode == 0
        times.append(time.perf_counter() - start)
    # The best of several: the machine may be busy with something else.
    assert min(times) < 0.5
