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
from http.client import HTTPConnection
from pathlib import Path

from running_server import LIMITS, SOURCE, until

from inferometer.server.log import JsonFormatter, PatientHandler


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


def numbered(text: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"(?m)^(\d+) x+$", text)]


def test_a_full_pipe_stops_no_request(models: dict[str, Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--model-id", str(models["llama"]), "--weights", "dummy", "--dtype", "float32", "--device", "cpu", *LIMITS]
    command = [sys.executable, "-m", "inferometer", "serve", "--hostname", "127.0.0.1", "--port", str(port), *flags]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    # A pipe of one page is full after some 60 lines.
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, pipesize=4096) as process:
        try:
            until(lambda: listens(port), 120)
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            for _ in range(200):  # some 14 KB of log
                connection.request("POST", "/generate", b"{", {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                assert response.status == 400
            connection.close()
            assert process.stderr is not None
            assert unread(process.stderr.fileno()) > 3800
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def unread(pipe: int) -> int:
    """Bytes that lie in it."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
