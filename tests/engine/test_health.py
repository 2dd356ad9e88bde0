"""The watch over ranks, with sockets for ranks: who beats is well, who does not is ended."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from inferometer.engine.parallel import health, peer
from inferometer.engine.parallel.health import Watch, may_be_anothers
from inferometer.engine.parallel.peer import Peer
from inferometer.engine.parallel.wire import Answer


class Pretended:
    """A process that a peer has, or so it says."""

    def __init__(self, stopped: bool = False) -> None:
        self.stopped = stopped
        self.killed = threading.Event()

    def kill(self) -> None:
        """As asked."""
        self.killed.set()

    def close(self) -> None:
        """Nothing to let go of."""


class Rank:
    """The far ends of a peer's sockets."""

    def __init__(self, rank: int, process: Pretended | None) -> None:
        commands, self.commands = socket.socketpair()
        beats, self.beats = socket.socketpair()
        self.process = process
        self.peer = Peer(rank, commands, beats, process, 1000 + rank)  # type: ignore[arg-type]

    def close(self) -> None:
        """Both sides."""
        self.peer.close()
        self.commands.close()
        self.beats.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that are shorter, and not so short that a busy machine seems to have been stopped."""
    monkeypatch.setattr(health, "TICK", 0.15)
    monkeypatch.setattr(peer, "SILENCE", 1.2)


@pytest.fixture
def ranks(quick: None) -> Iterator[list[Rank]]:
    found = [Rank(1, Pretended()), Rank(2, None)]
    yield found
    for rank in found:
        rank.close()


def beating(rank: Rank, until: threading.Event) -> threading.Thread:
    """Answers every beat with one."""

    def beat() -> None:
        with suppress(OSError):  # whoever listens may have closed its end
            while not until.is_set() and rank.beats.recv(100):
                rank.beats.sendall(b"\n")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    return thread


def test_ranks_that_beat_are_well_and_one_that_ceases_ends_all(ranks: list[Rank]) -> None:
    ceasing, never = threading.Event(), threading.Event()
    threads = [beating(ranks[0], never), beating(ranks[1], ceasing)]
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    assert not watch.failed.wait(0.6)
    ceasing.set()  # of another machine: silence is all that can be known
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2 (process 1002 of another machine) has stopped answering"
    assert ranks[0].process is not None
    assert ranks[0].process.killed.wait(30)
    assert ranks[0].commands.recv(1) == b""  # whoever waits there waits no more
    watch.close()
    for thread in threads:
        thread.join(10)


def test_a_rank_that_is_seen_to_run_is_given_time(ranks: list[Rank]) -> None:
    never = threading.Event()
    beating(ranks[1], never)
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    assert not watch.failed.wait(0.5)
    assert ranks[0].process is not None
    ranks[0].process.stopped = True
    assert watch.failed.wait(30)
    assert watch.failure == "rank 1 (process 1001) has stopped answering"
    watch.close()


def test_last_words_are_the_reason(ranks: list[Rank]) -> None:
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    ranks[1].beats.sendall(b"\n" + json.dumps({"failed": "OutOfMemoryError: no room"}).encode() + b"\n")
    ranks[1].beats.close()
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2: OutOfMemoryError: no room"
    watch.close()


def met(text: str) -> bytes:
    return json.dumps({"failed": text, "shared": True}).encode() + b"\n"


def test_the_rank_that_ended_without_a_word_is_the_reason_for_what_another_met(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CAUSE", 600.0)
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    ranks[0].beats.sendall(met("RuntimeError: Connection reset by peer"))
    ranks[0].beats.close()
    assert not watch.failed.wait(0.2)
    ranks[1].beats.close()
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2 (process 1002 of another machine) has ended"
    watch.close()


def test_what_the_first_rank_met_is_the_reason_if_all_speak(ranks: list[Rank]) -> None:
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    ranks[1].beats.sendall(met("RuntimeError: a shape is wrong"))
    ranks[1].beats.close()
    assert not watch.failed.wait(0.1)
    ranks[0].beats.sendall(met("RuntimeError: Connection reset by peer"))
    ranks[0].beats.close()
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2: RuntimeError: a shape is wrong"
    watch.close()


def test_an_error_of_a_ranks_own_is_told_at_once(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CAUSE", 600.0)
    assert may_be_anothers(RuntimeError("reset"))
    assert not may_be_anothers(torch.OutOfMemoryError("full"))
    assert not may_be_anothers(ZeroDivisionError())
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    ranks[0].beats.sendall(met("RuntimeError: Connection reset by peer"))
    ranks[1].beats.sendall(json.dumps({"failed": "ZeroDivisionError: one by nothing", "shared": False}).encode() + b"\n")
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2: ZeroDivisionError: one by nothing"
    watch.close()


def test_a_refusal_ends_the_ranks_only_if_rank_0_waits_for_it(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REFUSED", 0.1)
    never = threading.Event()
    threads = [beating(rank, never) for rank in ranks]
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    refusal = json.dumps({"refused": ["user", "no such file"]}).encode() + b"\n"
    ranks[1].beats.sendall(refusal)
    assert not watch.failed.wait(0.8)  # by then it is forgotten
    watch.asking = True
    assert not watch.failed.wait(0.4)
    ranks[1].beats.sendall(refusal)
    assert watch.failed.wait(30)
    assert watch.failure == "rank 2: no such file"
    assert watch.refusal == (2, Answer(failed="user", message="no such file"))
    watch.close()
    for thread in threads:
        thread.join(10)


def test_an_end_that_was_meant_is_no_failure(ranks: list[Rank]) -> None:
    watch = Watch([rank.peer for rank in ranks], None)
    watch.start()
    watch.close()
    for rank in ranks:
        rank.beats.close()
    assert not watch.is_alive()
    assert watch.failure is None
    watch.fail("too late")
    assert watch.failure is None


def test_who_waits_on_a_device_that_never_answers_is_ended_with_the_reason(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "GRACE", 0.1)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watch = Watch([rank.peer for rank in ranks], None)
    watch.busy = True
    watch.start()
    ranks[0].beats.close()
    watch.join(30)
    assert ended == [1]


def test_a_device_that_waits_for_a_rank_that_is_gone_is_freed(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watch = Watch([rank.peer for rank in ranks], None)
    watch.busy = True

    def broken(seconds: float) -> None:
        raise RuntimeError("a device that has failed itself")

    def release(seconds: float) -> None:
        watch.busy = False  # whoever waited comes back

    watch.releases += [broken, release]
    watch.start()
    ranks[0].beats.close()
    watch.join(30)
    assert (watch.busy, ended) == (False, [])
