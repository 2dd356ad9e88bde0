"""How a command ends when a signal ends it, and when nobody takes what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferometer.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"

# `models` is put aside for a command that says that it has begun, waits for a signal, and tells that it was let close what it had opened.
WAITS = """
import signal, sys, time
from types import SimpleNamespace
from inferometer.cli import main
def run(arguments):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("closed")
main._module = lambda name: SimpleNamespace(configure=lambda parser: None, run=run)
sys.exit(main.main(["models"]))
"""

INTERRUPTED_AMID = """
import os, signal, sys, time
from types import SimpleNamespace
from inferometer.cli import main
def end():
    os.kill(os.getpid(), signal.NUMBER)
    for _ in range(10**6):
        pass
class Goes:
    def __del__(self):
        end()
def wrapped():
    try:
        end()
    except BaseException as error:
        raise RuntimeError("a descriptor cannot be named") from error
def source():
    exec("end()", {"end": end})
def destructor():
    Goes()
def run(arguments):
    PLACE()
    time.sleep(60)
main._module = lambda name: SimpleNamespace(configure=lambda parser: None, run=run)
sys.exit(main.main(["COMMAND"]))
"""
"""Run as a module: its end has another exit code than a script's where an interrupt came amid a piece of source."""


def start(**options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", WAITS], text=True, env=environment, **pipes, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_command_ends_it_in_one_way(number: signal.Signals) -> None:
    # Whoever started the tests, as `nohup make test &` does, may have had this one ignored, which a process hands on.
    with start(preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "closed\n", "inferometer: interrupted\n")


def test_what_is_to_outlive_its_terminal_does() -> None:
    with start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130


@pytest.mark.parametrize(
    "moment", ["inferometer.server.life.serve", "inferometer.cli.serve.read_settings", "inferometer.cli.serve.configure"]
)
def test_a_server_that_is_ended_before_it_serves_has_ended_well(
    moment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupted)
    assert main(["serve"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("command", "code", "words"), [("serve", 0, b""), ("models", 130, b"inferometer: interrupted\n")])
@pytest.mark.parametrize("place", ["source", "wrapped", "destructor"])
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_is_neither_lost_nor_another_failure_wherever_it_falls(
    tmp_path: Path, number: str, place: str, command: str, code: int, words: bytes
) -> None:
    """Imports are full of such places: dataclasses are made from source, descriptors named in ways that wrap errors, and what Python calls
    when an object goes cannot fail."""
    script = INTERRUPTED_AMID.replace("PLACE", place).replace("NUMBER", number).replace("COMMAND", command)
    (tmp_path / "begun.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(tmp_path)))}
    done = subprocess.run(
        [sys.executable, "-m", "begun"],
        env=environment,
        check=False,
        capture_output=True,
        timeout=20,
        preexec_fn=lambda: signal.signal(signal.Signals[number], signal.SIG_DFL),  # as above
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", words)


PRINTING = [
    ["--help"],
    ["--version"],
    ["models"],
    ["models", "--json"],
    ["devices"],
    ["devices", "--json"],
    ["estimate", "opt-125m", "--device", "l4"],
    ["estimate", "opt-125m", "--device", "l4", "--json"],
    ["estimate", "llama-2-70b", "--device", "l4", "--require-fit"],
    ["validate", "--regime", "002"],
    ["study", "list"],
    ["study", "show", "backend-sweep"],
    ["study", "run", "backend-sweep", "--scale", "tiny", "--only", "batch_size=1", "--dry-run", "--device", "cpu"],
]


@pytest.mark.parametrize("line", PRINTING, ids=" ".join)
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_is_full_is_one_line_and_a_failure(
    line: list[str], buffered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        stream = open(os.dup(full.fileno()), "w") if buffered else _unbuffered(full)  # noqa: SIM115  (closed with what it drops)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(line) == 1
        stream.close()
    words = "inferometer: error: the standard output takes no more: No space left on device; send it somewhere else\n"
    assert capsys.readouterr().err == words


def _unbuffered(full: Any) -> Any:
    from io import TextIOWrapper

    return TextIOWrapper(full, write_through=True)


@pytest.mark.parametrize("redirection", [">/dev/full", ">/dev/full 2>&1", ">&-", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_streams_that_take_nothing_decide_no_exit_code_but_their_own(redirection: str) -> None:
    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        line = " ".join([sys.executable, "-m", "inferometer", *words, redirection])
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run(line, shell=True, env=environment, check=False, capture_output=True, text=True, timeout=60)

    lost = redirection.startswith(">")
    told = ended("models")
    assert told.returncode == (1 if lost else 0)
    why = {">/dev/full": "No space left on device", ">&-": "Bad file descriptor"}.get(redirection)
    assert told.stderr == (f"inferometer: error: the standard output takes no more: {why}; send it somewhere else\n" if why else "")
    assert ended("models", "fetch").returncode == 2


def test_what_an_encoding_lacks_is_a_question_mark() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "ascii"}
    words = "from inferometer.cli import main\nfrom types import SimpleNamespace\n"
    words += "main._module = lambda name: SimpleNamespace(configure=lambda parser: None, run=lambda a: print('Münze \\udc80') or 0)\n"
    done = subprocess.run(
        [sys.executable, "-c", words + "main.main(['models'])"], capture_output=True, env=environment, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"M?nze ?\n", b"")
