"""A real server in a process of its own, for tests: started, asked, and certainly ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from forked_server import ForkedServer

SOURCE = Path(__file__).resolve().parents[2] / "src"
START_SECONDS = 120.0
"""Far more than a start takes, for machines where much else runs."""

LIMITS = ("--max-input-length", "256", "--max-total-tokens", "512", "--gpu-memory", "0.25")
"""Limits that a small model of 512 positions can be served with."""

PLAIN = {"inputs": "The plain request", "parameters": {"max_new_tokens": 8, "details": True}}


@dataclass(frozen=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; NaN and the like are none."""
        return json.loads(self.body, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))

    def events(self) -> list[Any]:
        """The data of a stream's events, each as JSON; [DONE] as it is."""
        data = [line.removeprefix("data:").strip() for line in self.body.decode("utf-8").split("\n") if line.startswith("data:")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


def latest(*words: str) -> list[str]:
    """The options without values that a later one replaces, as a command line takes one of each; origins are a list."""
    options: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name = f"{word} {len(options)}" if word == "--cors-allow-origin" else word
            options[name] = []
        options[name].append(word)
    return [word for option in options.values() for word in option]


class RunningServer:
    """`inferometer serve` with some arguments, on a free port. A context manager that leaves no process behind.

    forked: for a test that asks nothing of its processes; they are forked where everything is loaded, which is a quarter of the work.
    log: what it has written to standard error so far.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None, wait: bool = True, forked: bool = False) -> None:
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        inherited = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.port = 0
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._recorded: Any = None
        words = latest("--port", "0", "--hostname", "127.0.0.1", *arguments)
        self.process = (_forked if forked else _started)(words, {**inherited, **(environment or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_for_start()

    @property
    def log(self) -> str:
        """Standard error so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for_log(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """The first match of `pattern` in the log, once it is there. Fails where the process ends without it."""
        with self._changed:
            found = self._changed.wait_for(lambda: re.search(pattern, "".join(self._lines)) or not self._reader.is_alive(), seconds)
        assert isinstance(found, re.Match), f"no {pattern!r} in:\n{self.log}"
        return found

    def wait_for_start(self) -> None:
        """Returns once it serves."""
        self.port = int(self.wait_for_log(r"serving .* on http://[^ ]*:(\d+)").group(1))
        self._recorded = None

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self, seconds: float = 60.0) -> HTTPConnection:
        """A connection of one's own."""
        return HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def request(self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            sent = body.encode("utf-8") if isinstance(body, str) else body
            connection.request(method, path, sent, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        """POST of a JSON document."""
        return self.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})

    def generate(self, inputs: str, **parameters: Any) -> Any:
        """The JSON answer of /generate, which must succeed."""
        answer = self.post("/generate", {"inputs": inputs, "parameters": parameters})
        assert answer.status == 200, answer.body
        return answer.json()

    def stream(self, inputs: str, **parameters: Any) -> list[Any]:
        """The events of /generate_stream."""
        answer = self.post("/generate_stream", {"inputs": inputs, "parameters": parameters})
        assert answer.status == 200, answer.body
        return answer.events()

    def open_stream(self, path: str, body: Any) -> tuple[HTTPConnection, HTTPResponse]:
        """A stream that has begun: its head and first event are here. To be closed by who asked."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.readline().startswith(b"data:")
        return connection, response

    def alive(self) -> None:
        """Asserts that a plain request succeeds, with the same answer as the first time that this was called, and that health is good."""
        answer = self.post("/generate", PLAIN)
        assert answer.status == 200, answer.body
        if self._recorded is None:
            self._recorded = answer.json()
        assert answer.json()["generated_text"] == self._recorded["generated_text"]
        assert [token["id"] for token in answer.json()["details"]["tokens"]] == [
            token["id"] for token in self._recorded["details"]["tokens"]
        ]
        assert self.get("/health").status == 200

    def engine_process(self) -> int:
        """The process that runs the model."""
        found = children(self.process.pid)
        assert len(found) == 1
        return found[0]

    def end(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its engine goes with it, which a test of its own holds
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stderr, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def _started(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "inferometer", "serve", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _forked(words: list[str], environment: dict[str, str]) -> ForkedServer:
    from forked_server import ForkedServer  # only here, as it needs torch

    return ForkedServer(words, environment)


def children(process: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == process and after_name[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_running(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: Any, seconds: float = 20.0) -> None:
    """Polls until `condition()` is true; fails where it does not become so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def dummy(folder: Path, *more: str, forked: bool = False) -> RunningServer:
    """A server of a small random model in float32 on the CPU."""
    fixed = ("--model-id", str(folder), "--weights", "dummy", "--dtype", "float32", "--device", "cpu")
    return RunningServer(*fixed, *more, forked=forked)
