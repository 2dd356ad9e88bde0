"""Large sums by copies between ranks: threads are ranks, and what a stream is given it does at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.engine.parallel import peer_copies
from inferometer.engine.parallel.peer_copies import PeerCopies
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum_torch

HIDDEN, INNER = 64, 32
PIECE_BYTES = 32 * HIDDEN * 2
"""A piece of 32 rows."""
PATIENCE_S = 60


class Immediate:
    """A stream, and an event."""

    def __init__(self, *arguments: Any) -> None: ...

    def record(self, *arguments: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


@dataclass
class Room:
    """Memory of all ranks, in the order in which each takes it."""

    size: int
    taken: list[list[Tensor]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def take(self, number: int, nbytes: int) -> list[Tensor]:
        with self.lock:
            if number == len(self.taken):
                self.taken.append([torch.zeros(nbytes, dtype=torch.uint8) for _ in range(self.size)])
            return self.taken[number]


@dataclass
class Peers:
    rank: int
    size: int
    room: Room
    barrier: threading.Barrier
    number: int = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def host(self) -> Any:
        return SimpleNamespace(rank=self.rank, size=self.size)

    def meet(self) -> None:
        self.barrier.wait(PATIENCE_S)


class Memory:
    def __init__(self, nbytes: int, peers: Peers) -> None:
        self._all = peers.room.take(peers.number, nbytes)
        peers.number += 1
        self.own = self._all[peers.rank]

    def of(self, rank: int) -> Tensor:
        return self._all[rank]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_copies, "PeerMemory", Memory)
    monkeypatch.setattr(peer_copies, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("inferometer.engine.parallel.pieces.LEAST_BYTES", PIECE_BYTES // 4)
    monkeypatch.setattr("inferometer.engine.parallel.pieces.TILE", 4)
    monkeypatch.setattr(torch.cuda, "Stream", Immediate)
    monkeypatch.setattr(torch.cuda, "Event", Immediate)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", Immediate)


def on_all(size: int, work: Callable[[PeerCopies, int], Any]) -> list[Any]:
    """What work(copies, rank) returns on each rank."""
    room, barrier = Room(size), threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        waiting = [pool.submit(lambda rank=rank: work(PeerCopies(Peers(rank, size, room, barrier)), rank)) for rank in range(size)]
        return [each.result(timeout=PATIENCE_S) for each in waiting]


def part(rank: int, rows: int, width: int = HIDDEN, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * rows + rank)).to(dtype)


def weights(kind: Any = "layer") -> NormWeights:
    weight, bias = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16)
    return NormWeights(kind, 1e-5, weight, bias)


ROWS = (1, 2, 3, 31, 32, 33, 100, 129, 400)
"""Less than a row a rank; a piece; several; more than a round holds."""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_are_in_the_order_of_ranks(size: int) -> None:
    def work(copies: PeerCopies, rank: int) -> list[Tensor]:
        return [copies.sum(part(rank, rows)) for rows in ROWS]

    for found in on_all(size, work):
        for rows, total in zip(ROWS, found, strict=True):
            assert torch.equal(total, rank_sum_torch([part(rank, rows) for rank in range(size)])), rows


@pytest.mark.parametrize("size", [2, 3, 4])
def test_norms_of_a_stream_that_is_summed_again_and_again(size: int) -> None:
    """Layer after layer: what one call returns is what the next one's function reads, and where its result must not go."""
    maps = [part(50 + layer, INNER) / 8 for layer in range(5)]

    def work(copies: PeerCopies, rank: int) -> list[tuple[Tensor, Tensor]]:
        found = []
        for rows in ROWS:
            residual, x = part(9, rows), part(rank, rows, INNER)
            for matrix in maps:
                normed = copies.sum_of(lambda y, matrix=matrix: y @ matrix, x, residual, weights())
                x = normed[:, rank * 8 : rank * 8 + INNER].contiguous()
            found.append((normed.clone(), copies.completed(residual)))
        return found

    def alone(rows: int) -> tuple[Tensor, Tensor]:
        residual, xs = part(9, rows), [part(rank, rows, INNER) for rank in range(size)]
        for matrix in maps:
            residual = residual + rank_sum_torch([x @ matrix for x in xs])
            normed = weights().of(residual.clone())
            xs = [normed[:, rank * 8 : rank * 8 + INNER] for rank in range(size)]
        return normed, residual

    ranks = on_all(size, work)
    for i, rows in enumerate(ROWS):
        normed, residual = alone(rows)
        for found in ranks:
            torch.testing.assert_close(found[i][0], normed, rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(found[i][1], residual, rtol=5e-2, atol=5e-2)
            assert torch.equal(found[i][0], ranks[0][i][0])
            assert torch.equal(found[i][1], ranks[0][i][1])


@pytest.mark.parametrize("size", [2, 4])
def test_a_result_that_is_the_next_residual(size: int) -> None:
    """Norms behind the sum: what is returned is added to by the next call."""

    def work(copies: PeerCopies, rank: int) -> list[Tensor]:
        found = []
        for rows in ROWS:
            x = part(9, rows)
            for layer in range(4):
                x = copies.sum_of(lambda y, layer=layer: y + part(10 * layer + rank, 1), x, x, weights())
            found.append(copies.sum(x.clone()))
        return found

    def alone(rows: int) -> Tensor:
        x = part(9, rows)
        for layer in range(4):
            x = weights().of(x + rank_sum_torch([x + part(10 * layer + rank, 1) for rank in range(size)]))
        return rank_sum_torch([x] * size)

    for found in on_all(size, work):
        for rows, x in zip(ROWS, found, strict=True):
            torch.testing.assert_close(x, alone(rows), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("size", [2, 3])
def test_rows_side_by_side(size: int) -> None:
    def work(copies: PeerCopies, rank: int) -> list[tuple[Tensor, Tensor]]:
        found = []
        for rows in ROWS:
            x = part(rank, rows, 7, torch.float32)
            out = torch.empty(rows, 7 * size - 1)
            found.append((copies.gather(x, out), copies.sum(part(rank, rows))))
        return found

    for found in on_all(size, work):
        for rows, (side_by_side, total) in zip(ROWS, found, strict=True):
            assert torch.equal(side_by_side, torch.cat([part(rank, rows, 7, torch.float32) for rank in range(size)], 1)[:, :-1])
            assert torch.equal(total, rank_sum_torch([part(rank, rows) for rank in range(size)]))


def test_a_result_of_one_round_lies_where_a_later_call_writes() -> None:
    def work(copies: PeerCopies, rank: int) -> tuple[bool, bool, bool]:
        x = part(9, 32)
        near, far = (copies.sum_of(lambda y: y, part(rank, rows), part(9, rows), weights()) for rows in (32, 400))
        return copies.holds(near), copies.holds(far), copies.holds(x)

    assert on_all(2, work) == [(True, False, False)] * 2


def test_a_row_that_is_too_long_is_not_served() -> None:
    def work(copies: PeerCopies, rank: int) -> tuple[bool, bool, bool]:
        return copies.serves(copies.slot), copies.serves(copies.slot + 1), copies.serves(0)

    assert on_all(2, work) == [(True, False, False)] * 2
    assert on_all(4, lambda copies, rank: copies.slot * 4) == [PIECE_BYTES] * 4


def test_whoever_waits_is_let_go() -> None:
    def work(copies: PeerCopies, rank: int) -> bool:
        if rank == 0:
            waiting = threading.Thread(target=copies.sum, args=(part(0, 400),), daemon=True)
            waiting.start()
            waiting.join(0.2)
            was_alive = waiting.is_alive()
            copies.let_go()
            waiting.join(PATIENCE_S)
            return was_alive and not waiting.is_alive()
        return True

    assert on_all(2, work) == [True, True]
