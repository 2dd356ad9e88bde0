"""Ranks without a model: started, told, asked, and gone within seconds, whatever ends one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_functions
from processes import LIMIT_SECONDS, Watched, descendants, in_a_fork, with_launcher

from inferometer.engine.parallel.leader import Leader, start
from inferometer.engine.parallel.ranks import RanksError
from inferometer.engine.parallel.wire import RANKS, Call
from inferometer.errors import UserError

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks find this folder's modules."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), str(Path(__file__).parent)]))


@pytest.fixture
def three(importable: None) -> Iterator[Leader]:
    """Three ranks, led by this process."""
    leader = start(3)
    yield leader
    leader.close()


def ask(leader: Leader, function: Callable[..., Any], *given: Any, target: int = RANKS, keeps: int | None = None) -> list[Any]:
    """What a function gives on every other rank."""
    return leader.ask(Call(target, function, given, answered=True, keeps=keeps), lambda: None)[1]


def tell(leader: Leader, function: Callable[..., Any], *given: Any) -> None:
    """Lets every other rank do something, and does not wait for it."""
    leader.run(Call(RANKS, function, given), lambda: None)


def test_ranks_do_what_they_are_told_and_end_with_their_leader(three: Leader) -> None:
    watched = Watched(with_launcher(three.processes))
    assert (three.rank, three.size, three.local_size, three.leads) == (0, 3, 3, True)
    assert ask(three, rank_functions.number) == [1, 2]
    ask(three, rank_functions.number, keeps=7)
    assert ask(three, rank_functions.twice, target=7) == [2, 4]

    with pytest.raises(UserError, match=r"^rank 2: no such thing; ask for another$"):
        ask(three, rank_functions.refuse, 2)
    with pytest.raises(RuntimeError, match=r"^rank 1: MemoryError: no room$") as lacking:
        ask(three, rank_functions.exhaust, 1)
    assert type(lacking.value).__name__ == "OutOfMemoryError"
    assert ask(three, rank_functions.number) == [1, 2]  # nobody has ended of that

    with pytest.raises(UserError, match=r"^mine$"):
        three.ask(Call(RANKS, rank_functions.number, answered=True), _refuse_here)
    assert ask(three, rank_functions.number) == [1, 2]

    three.close()
    assert watched.gone() == []
    with pytest.raises(RanksError, match="closed"):
        three.check()
    three.close()


def _refuse_here() -> None:
    raise UserError("mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (rank_functions.fail, r"^rank 2: ZeroDivisionError: one by nothing$"),
        (rank_functions.exhaust, r"^rank 2: MemoryError: no room$"),
        (rank_functions.die, r"^rank 2 \(process \d+\) has ended \(SIGKILL\)$"),
        (rank_functions.stop, r"^rank 2 \(process \d+\) has stopped answering$"),
    ],
)
def test_a_rank_that_fails_by_itself_ends_all(three: Leader, function: Callable[..., Any], reason: str) -> None:
    watched = Watched(with_launcher(three.processes))
    tell(three, function, 2)
    assert watched.gone() == []
    assert three.wait_for_failure()
    with pytest.raises(RanksError, match=reason):
        ask(three, rank_functions.number)


@pytest.mark.slow
def test_a_fork_of_the_leader_has_no_part_in_the_ranks(three: Leader) -> None:
    """It gets a copy of all that the leader has, and lets go of that when it ends."""

    def ends() -> None:
        with pytest.raises(RanksError, match="of which this is a fork"):
            ask(three, rank_functions.number)
        three.tell(Call(RANKS, rank_functions.refuse, (1,)))
        three.flush()
        three.close()

    in_a_fork(ends)
    assert ask(three, rank_functions.number) == [1, 2]


def test_a_rank_that_is_killed_ends_all(importable: None) -> None:
    leader = start(2)
    watched = Watched(with_launcher(leader.processes))
    os.kill(leader.processes[0], signal.SIGKILL)
    assert watched.gone() == []
    with pytest.raises(RanksError, match=rf"^rank 1 \(process {leader.processes[0]}\) has ended \(SIGKILL\)$"):
        leader.run(Call(RANKS, rank_functions.number), lambda: None)
    leader.close()


@pytest.mark.slow
def test_a_launcher_that_is_killed_ends_all(importable: None) -> None:
    leader = start(3)
    launcher, *_ = all_of_them = with_launcher(leader.processes)
    watched = Watched(all_of_them)
    os.kill(launcher, signal.SIGKILL)
    assert watched.gone() == []
    assert leader.wait_for_failure()
    leader.close()


@pytest.mark.slow
def test_a_rank_that_refuses_its_part_is_not_waited_for(importable: None) -> None:
    leader = start(2)
    watched = Watched(leader.processes)
    ways = leader.ask(Call(RANKS, rank_functions.way, answered=True), lambda: rank_functions.way(leader))[0]
    call = Call(RANKS, rank_functions.refuse, (1,), answered=True)
    with pytest.raises(UserError, match=r"^rank 1: no such thing; ask for another$"):
        leader.ask(call, lambda: ways.minimum(1))  # in which rank 1 takes no part
    assert watched.gone() == []
    leader.close()


LEADING = """
import json, sys
from inferometer.engine.parallel.leader import start
leader = start(2)
print(json.dumps(leader.processes), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
def test_a_leader_that_ends_or_hangs_takes_all_along(number: signal.Signals) -> None:
    leading = subprocess.Popen(
        [sys.executable, "-c", LEADING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        assert leading.stdout is not None
        json.loads(leading.stdout.readline())
        watched = Watched(descendants(leading.pid))
        leading.send_signal(number)
        assert watched.gone() == []
    finally:
        leading.kill()
        leading.communicate(timeout=LIMIT_SECONDS)


def test_ranks_that_cannot_start_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RanksError, match="launcher of the ranks has ended"):
        start(2)


@pytest.mark.parametrize("address", [("203.0.113.7", 0), ("no such host", 0)])
def test_ranks_meet_at_an_address_of_this_machine(address: tuple[str, int]) -> None:
    with pytest.raises(UserError, match=r"--master-addr .* cannot be used"):
        start(2, address=address[0], port=address[1])
