"""A rank that follows: it does on its part of the model whatever rank 0 does, until that ends.

Started by the launcher as `python -m inferometer.engine.parallel.follower SIZE HOST PORT STORE_PORT PARENT`, with its number in the
environment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inferometer.engine.parallel.health import may_be_anothers
from inferometer.engine.parallel.launch import TOKEN_VARIABLE
from inferometer.engine.parallel.lifeline import die_with
from inferometer.engine.parallel.meeting import meet
from inferometer.engine.parallel.tether import Tether
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.engine.parallel.ranks import Follower
    from inferometer.engine.parallel.store import Store

DONE: Final = 0
FAILED: Final = 1


def main(arguments: list[str]) -> int:
    """A rank that was started by the launcher."""
    size, host, port, store_port, parent = int(arguments[0]), arguments[1], *map(int, arguments[2:5])
    die_with(parent)
    rank = int(os.environ["RANK"]) + 1  # the agent knows nothing of rank 0
    commands, beats, leader = meet((host, port), os.environ.pop(TOKEN_VARIABLE), rank)

    def store() -> Store:
        from inferometer.engine.parallel.store import join_store

        return join_store(host, store_port)

    return _follow(rank, size, (rank, size), store, commands, Tether(beats, leader))


def follow(here: Torchrun) -> int:
    """A rank that torchrun has started, until rank 0 ends. The exit code of its process."""
    found = here.store()
    whither = here.leader(found)
    if whither is None:
        return DONE
    commands, beats, leader = meet(*whither, here.rank)
    place = (here.local_rank, here.local_size)
    return _follow(here.rank, here.size, place, lambda: found, commands, Tether(beats, leader))


def _follow(rank: int, size: int, place: tuple[int, int], store: Callable[[], Store], commands: socket.socket, tether: Tether) -> int:
    # A terminal's interrupt and a supervisor's signal go to all ranks; when this one ends is rank 0's to say.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tether.start()
    from inferometer.engine.parallel.ranks import Follower

    address = commands.getsockname()[0].removeprefix("::ffff:")
    try:
        _obey(Follower(rank, size, *place, address, store), commands, tether)
    except EOFError:
        return FAILED  # rank 0 is gone, however it ended
    except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 tells it in one line)
        tether.fail(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", shared=may_be_anothers(error))
        return FAILED
    tether.loosen()
    return DONE


def _obey(ranks: Follower, commands: socket.socket, tether: Tether) -> None:
    """Does what it is told until it is told that this is all. Raises EOFError where rank 0 is gone."""
    import torch

    from inferometer.engine.parallel.wire import RANKS, Answer, Call, End, Forget, Frames, Step, orders

    held: dict[int, Any] = {RANKS: ranks}
    refused = 0
    frames = Frames(commands)
    while True:
        for order in orders(frames.next()):
            match order:
                case Step(target, seen, theirs):
                    engine = held[target]
                    if (engine.seen, refused) != (seen, theirs):
                        raise RuntimeError("this rank has come to other tokens than rank 0: the ranks' machines or versions differ")
                    try:
                        engine.step()
                    except UserError:
                        refused += 1
                case Call(target, function, given, answered, keeps):
                    answer = Answer()
                    try:
                        value = function(held[target], *given)
                    except UserError as error:
                        answer = Answer(failed="user", message=str(error))
                        refused += not answered
                    except (MemoryError, torch.OutOfMemoryError) as error:
                        if not answered:
                            raise
                        answer = Answer(failed="memory", message=f"{type(error).__name__}: {' '.join(str(error).split())}")
                    else:
                        if keeps is not None:
                            held[keeps] = value
                        else:
                            answer = Answer(value if isinstance(value, int) else None)
                        del value
                    if answered:
                        if answer.failed is not None:
                            tether.refuse(answer)
                        commands.sendall(answer.frame())
                case Forget(target):
                    forgotten = held.pop(target, None)
                    if forgotten is not None:
                        forgotten.close()
                    del forgotten
                case End():
                    return


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Threads of libraries may wait for ranks that are gone by now.
    sys.stderr.flush()
    os._exit(code)
