"""A running `inferometer serve`, for `benchmarks/server.py` to measure from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from server_load import Plan


class Server:
    """`inferometer serve`, running."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self._port = port

    def stream(self, order: str, requests: Sequence[tuple[str, int]], *, lead: int = 0) -> list[tuple[float, list[float]]]:
        """(when sent, when each token came) of every request, in the client's seconds."""
        bodies = [{"inputs": prompt, "parameters": {"max_new_tokens": new}} for prompt, new in requests]
        job = {"port": self._port, "path": "/generate_stream", "order": order, "lead": lead, "bodies": bodies}
        client = [sys.executable, str(Path(__file__).with_name("server_client.py"))]
        done = subprocess.run(client, input=json.dumps(job), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the client failed: {done.stderr[-2000:]}")
        streams = [(each["sent"], each["tokens"]) for each in json.loads(done.stdout)["streams"]]
        assert [len(tokens) for _, tokens in streams] == [new for _, new in requests]
        return streams

    def cpu_s(self) -> float:
        """Processor time of the process that speaks HTTP, so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(plan: Plan) -> Iterator[Server]:
    """A server for as long as this lasts."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "inferometer", "serve", "--hostname", "127.0.0.1", "--port", "0", *plan.flags]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, text=True) as process:
        try:
            while True:
                log.seek(0)
                said = log.read()
                found = re.search(r"serving .* on http://[^ ]*:(\d+)", said)
                if found:
                    break
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start: {said}")
                time.sleep(0.1)
            print(f"the server ready: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
            yield Server(process, int(found.group(1)))
        finally:
            process.terminate()
            assert process.wait(120) == 0
