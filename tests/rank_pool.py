"""Processes that stand by as the ranks of a model, so that many cases pay once for their start."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed

from forked import context
from inferometer.nn.gloo_collective import GlooCollective

SIZES = (2, 4)
PATIENCE_S = 240
"""After which a case is given up: some take seconds where the machine is busy."""


class RankPool:
    """As many processes as the largest of SIZES, in gloo groups of each of them."""

    def __init__(self) -> None:
        apart = context()
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._ranks = []
        for rank in range(SIZES[-1]):
            ours, theirs = apart.Pipe()
            rank_process = apart.Process(target=_serve, args=(rank, str(Path(self._folder.name) / "store"), theirs), daemon=True)
            rank_process.start()
            theirs.close()
            self._pipes.append(ours)
            self._ranks.append(rank_process)

    def run(self, ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What work(collective, *arguments) returns on each of so many ranks. Raises RuntimeError with what a rank raised."""
        for pipe in self._pipes[:ranks]:
            pipe.send((ranks, work, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes[:ranks]):
            if not pipe.poll(PATIENCE_S):
                self.close()
                raise RuntimeError(f"rank {rank} of {ranks} says nothing")
            answers.append(pipe.recv())
        failed = [f"rank {rank}: {told}" for rank, (well, told) in enumerate(answers) if not well]
        if failed:
            raise RuntimeError("\n".join(failed))
        return [told for _, told in answers]

    def close(self) -> None:
        """Ends the processes."""
        for rank_process in self._ranks:
            rank_process.kill()
            rank_process.join()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _serve(rank: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE_S)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZES[-1], timeout=limit)
    groups = {size: torch.distributed.new_group(range(size), timeout=limit) for size in SIZES}
    while True:
        try:
            ranks, work, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, work(GlooCollective(groups[ranks]), *arguments)))
        except Exception:  # noqa: BLE001 (whoever asked is told)
            pipe.send((False, traceback.format_exc()))
