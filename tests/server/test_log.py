"""Log lines, and a reader that does not read."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from running_server import LIMITS, SOURCE, START_SECONDS, RunningServer, until

from inferometer.server.log import FLUSH_SECONDS, JsonFormatter, PatientHandler


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("there", logging.INFO, "", 0, message, (), None)
    made.fields = fields
    return made


def test_a_line_is_one_object() -> None:
    line = JsonFormatter().format(record('two\nlines and "marks"', status=200))
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["level"], found["target"], found["status"]) == ('two\nlines and "marks"', "INFO", "there", 200)


def test_nobody_waits_for_a_reader_and_what_was_lost_is_told() -> None:
    reading, writing = os.pipe()
    handler = PatientHandler(writing, kept=50)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for number in range(3000):
        handler.emit(record(f"{number} " + "x" * 100))
    assert handler.lost > 1000  # the others are in the pipe, the writer's hands and the queue
    text = b""
    while len(numbered(text)) + sum(int(lost) for lost in re.findall(rb"(\d+) lines of the log were lost", text)) < 3000:
        text += os.read(reading, 65536)
    assert len(numbered(text)) == 3000 - handler.lost
    assert numbered(text) == sorted(numbered(text))
    assert numbered(text)[:50] == list(range(50))
    os.close(reading)
    os.close(writing)


def test_a_file_that_takes_nothing_for_a_while_costs_what_was_said_meanwhile() -> None:
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)  # when it is full, a write fails, as to a disk that is
    held = os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
    handler = PatientHandler(writing)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for number in range(3):
        handler.emit(record(f"{number} x"))
        handler.flush()
    assert len(os.read(reading, 65536)) == held
    handler.emit(record("3 x"))
    handler.flush()
    handler.emit(record("4 x"))
    handler.flush()
    assert os.read(reading, 65536) == b"3 x\n3 lines of the log were lost: nobody took them\n4 x\n"
    os.close(reading)
    handler.emit(record("5 x"))  # to nobody: the process ends none the later
    began = time.monotonic()
    handler.flush()
    assert time.monotonic() - began < FLUSH_SECONDS
    os.close(writing)


def numbered(text: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"(?m)^(\d+) x+$", text)]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that a server may have, and nobody else meanwhile: it is bound, and whoever shares it has to say so as a server does."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def full() -> Iterator[int]:
    """A pipe that takes nothing and that nobody reads."""
    reading, writing = os.pipe()
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
def talking(tmp_path: Path) -> dict[str, str]:
    """What makes an engine say that it compiles kernels, and that it cannot."""
    return {"INFEROMETER_HOME": str(tmp_path), "CXX": "false"}


def test_a_full_pipe_stops_no_request(models: dict[str, Path], port: int) -> None:
    # A pipe of one page is full after some 60 lines.
    with subprocess.Popen(command(models, "--port", str(port)), stderr=subprocess.PIPE, env=environment({}), pipesize=4096) as process:
        try:
            wait_for_start(process, port)
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            for _ in range(200):  # some 14 KB of log
                connection.request("POST", "/generate", b"{", {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                assert response.status == 400
            connection.close()
            assert process.stderr is not None
            # Lines that are written together go in together, or wait together, so that some of the page may be free.
            assert 0 < unread(process.stderr.fileno()) <= 4096
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_pipe_that_is_full_from_the_start_stops_no_start(models: dict[str, Path], port: int, full: int, talking: dict[str, str]) -> None:
    with subprocess.Popen(command(models, "--port", str(port)), stderr=full, env=environment(talking)) as process:
        try:
            wait_for_start(process, port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_full_pipe_keeps_no_failure_from_ending(models: dict[str, Path], full: int) -> None:
    with subprocess.Popen(command(models, "--port", "0", "--quantize", "int99"), stderr=full, env=environment({})) as process:
        try:
            assert process.wait(START_SECONDS) == 2
        finally:
            process.kill()


def test_what_the_engine_prints_is_in_the_log(models: dict[str, Path], talking: dict[str, str]) -> None:
    with RunningServer(*flags(models), environment=talking) as server:
        lines = [line for line in server.log.splitlines() if line.startswith("inferometer: ")]
    assert [line.partition(";")[0] for line in lines] == [
        "inferometer: compiling kernels for this CPU, once (some 20 s)",
        "inferometer: warning: false could not compile them",
    ]


def flags(models: dict[str, Path]) -> tuple[str, ...]:
    return ("--model-id", str(models["llama"]), "--weights", "dummy", "--dtype", "float32", "--device", "cpu", *LIMITS)


def command(models: dict[str, Path], *more: str) -> list[str]:
    return [sys.executable, "-m", "inferometer", "serve", "--hostname", "127.0.0.1", *flags(models), *more]


def environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}


def wait_for_start(process: subprocess.Popen[bytes], port: int) -> None:
    """Returns once it listens; fails at once where it has ended."""
    until(lambda: process.poll() is not None or listens(port), START_SECONDS)
    assert process.poll() is None


def unread(pipe: int) -> int:
    """Bytes that lie in it."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
