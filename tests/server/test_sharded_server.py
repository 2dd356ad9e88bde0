"""A server of a model that several ranks share: it serves as one does, and when a rank fails it says so and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import LIMIT_SECONDS, Watched, descendants
from running_server import LIMITS, RunningServer, dummy

LONG = {"inputs": "a" * 20, "parameters": {"max_new_tokens": 400}}


@pytest.fixture
def sharded(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of two shards, for a test that ends it."""
    with dummy(models["llama"], *LIMITS, "--num-shard", "2", "--dtype", "float32") as running:
        yield running


def followers(server: RunningServer) -> list[int]:
    """The processes of all ranks but rank 0."""
    (launcher,) = descendants(server.engine_process())[:1]
    return descendants(launcher)


def assert_it_ends_of(server: RunningServer, watched: Watched, reason: str) -> None:
    """Everything is gone in time, and the last line says why."""
    began = time.monotonic()
    assert server.process.wait(LIMIT_SECONDS) == 1
    assert watched.gone(LIMIT_SECONDS - (time.monotonic() - began)) == []
    server._reader.join()
    lines = [line for line in server.log.splitlines() if line.startswith("inferometer: error:")]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "Traceback" not in server.log


def test_it_serves_what_one_shard_serves_and_tells_that_one_was_killed(sharded: RunningServer, server: RunningServer) -> None:
    asked = {"inputs": "The same", "max_new_tokens": 12, "details": True}
    drawn = {**asked, "do_sample": True, "temperature": 1.7, "seed": 11}
    for request in (asked, drawn):
        texts = [each.generate(**request)["generated_text"] for each in (server, sharded)]
        assert texts[0] == texts[1]
    connection, response = sharded.open_stream("/generate_stream", LONG)
    watched = Watched(descendants(sharded.process.pid))
    os.kill(followers(sharded)[0], signal.SIGKILL)
    last = json.loads(response.read().decode().strip().rpartition("data:")[2])
    connection.close()
    assert last["error_type"] == "generation"
    assert_it_ends_of(sharded, watched, "rank 1 (process ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "reason"),
    [
        (lambda server: followers(server)[0], signal.SIGKILL, "has ended (SIGKILL)"),
        (lambda server: followers(server)[0], signal.SIGSTOP, "has stopped answering"),
        (lambda server: descendants(server.engine_process())[0], signal.SIGKILL, "has ended"),
        (lambda server: server.engine_process(), signal.SIGKILL, "rank 0 (process "),
        (lambda server: server.engine_process(), signal.SIGSTOP, "rank 0 (process "),
    ],
    ids=["follower killed", "follower stopped", "launcher killed", "rank 0 killed", "rank 0 stopped"],
)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_whatever_rank_fails_ends_it(
    sharded: RunningServer, victim: Callable[[RunningServer], int], number: signal.Signals, reason: str, busy: bool
) -> None:
    opened = sharded.open_stream("/generate_stream", LONG) if busy else None
    watched = Watched(descendants(sharded.process.pid))
    os.kill(victim(sharded), number)
    assert_it_ends_of(sharded, watched, reason)
    if opened is not None:
        connection, response = opened
        assert b'"error_type":"generation"' in response.read()
        connection.close()


@pytest.mark.slow
def test_a_signal_to_all_of_its_processes_lets_it_drain(sharded: RunningServer) -> None:
    connection, response = sharded.open_stream("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 200}})
    everyone = [sharded.process.pid, *descendants(sharded.process.pid)]
    watched = Watched(everyone)
    for pid in everyone:
        os.kill(pid, signal.SIGTERM)
    assert json.loads(response.read().decode().strip().rpartition("data:")[2])["generated_text"] is not None
    connection.close()
    assert sharded.process.wait(30) == 0
    assert watched.gone() == []


@pytest.mark.slow
def test_the_shards_meet_where_they_are_told(models: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        more = ("--num-shard", "2", "--master-port", str(port), "--master-addr", "127.0.0.1")
        with RunningServer("--model-id", str(models["llama"]), "--weights", "dummy", "--device", "cpu", *more, wait=False) as server:
            assert server.process.wait(60) == 2
            server._reader.join()
            assert f"--master-port {port} cannot be used" in server.log
    with dummy(models["llama"], *LIMITS, *more) as running:
        running.alive()
