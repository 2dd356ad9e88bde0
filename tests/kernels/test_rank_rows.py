"""Sums of which every rank adds up rows of its own: several processes, launch after launch, against the sum in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.engine.parallel.peer_rows import FOR_GOOD, PeerRows
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_rows import SharedRows, rank_copies, rank_rows, shared_rows, takes_rows
from inferometer.kernels.rank_sum import rank_sum_torch
from rank_processes import run_sharing

HIDDEN, SLOT, PROGRAMS = 48, 1024, 3
ROWS = (1, 2, 5, 16, 9)
"""Fewer than ranks, than programs, and as many as a slot of 1024 bytes holds of two ranks."""


def run_rows(work: Callable[..., Any], size: int) -> list[Any]:
    """What `work(shared)` returns on each rank."""
    memory = [torch.empty(SharedRows.nbytes(size, SLOT, PROGRAMS), dtype=torch.uint8) for _ in range(size)]
    return run_sharing(work, memory, opened, seconds=120)


def opened(rank: int, memory: Tensor, addresses: Sequence[int]) -> SharedRows:
    return SharedRows.over(rank, SLOT, PROGRAMS, memory, addresses)


def part(rank: int, rows: int, dtype: torch.dtype = torch.float32, width: int = HIDDEN) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(100 * rows + rank)).to(dtype)


def weights(kind: Any = "layer") -> NormWeights:
    weight, bias = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(7))
    return NormWeights(kind, 1e-5, weight, bias if kind == "layer" else None)


def sums(shared: SharedRows, around: bool) -> list[tuple[Tensor, ...]]:
    found: list[tuple[Tensor, ...]] = []
    turn = 0
    for rows in ROWS:
        if not takes_rows(part(0, rows), shared):
            continue
        for dtype in (torch.float32, torch.float16):
            found.append((rank_rows(part(shared.rank, rows, dtype), shared, turn, around=around).clone(),))
            turn = 1 - turn
        residual = part(99, rows)
        normed = rank_rows(part(shared.rank, rows), shared, turn, residual, weights("layer" if rows % 2 else "rms"), around=around)
        turn = 1 - turn
        found.append((normed.clone(), residual))
        found.append((rank_copies(part(shared.rank, rows, torch.float16, 7), shared, turn).clone(),))
        turn = 1 - turn
    return found


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("size", "around"), [(2, False), (2, True), (4, True), pytest.param(3, False, marks=pytest.mark.slow)])
def test_every_rank_has_the_sum_its_norm_and_what_others_had(size: int, around: bool) -> None:
    ranks = run_rows(partial(sums, around=around), size)
    step = 0
    for rows in ROWS:
        if shared_rows(rows, size) * HIDDEN * 4 > SLOT:
            continue
        for dtype in (torch.float32, torch.float16):
            wanted = rank_sum_torch([part(rank, rows, dtype) for rank in range(size)])
            assert all(torch.equal(found[step][0], wanted) for found in ranks), (rows, dtype)
            step += 1
        total = part(99, rows) + rank_sum_torch([part(rank, rows) for rank in range(size)])
        normed = weights("layer" if rows % 2 else "rms").of(total.clone())
        for rank, found in enumerate(ranks):
            torch.testing.assert_close(found[step][0], normed, rtol=1e-5, atol=1e-5)
            assert torch.equal(found[step][0], ranks[0][step][0])
            each = shared_rows(rows, size)
            own = slice(rank * each, (rank + 1) * each)
            assert torch.equal(found[step][1][own], total[own])
        step += 1
        copies = torch.stack([part(rank, rows, torch.float16, 7).view(-1) for rank in range(size)])
        assert all(torch.equal(found[step][0], copies) for found in ranks)
        step += 1
    assert {len(found) for found in ranks} == {step}


def rounds(shared: SharedRows, around: bool) -> list[tuple[Tensor, ...]]:
    """Layer after layer, each reading what the one before returned, of fewer rows and of more than a round holds."""
    peers, rank = PeerRows(shared), shared.rank
    found: list[tuple[Tensor, ...]] = []
    for rows in (4, 23):
        residual, x = part(99, rows), part(rank, rows)
        for layer in range(3):
            x = peers.sum_of(lambda y, layer=layer: y * (layer + 1), x, residual, weights(), around=around)
        held = peers.holds(x)
        x, out = x.clone(), torch.empty(rows, 3 * shared.size - 1)
        found.append(
            (
                x,
                peers.completed(residual),
                peers.gather(part(rank, rows, width=3), out),
                peers.sum(part(rank, rows), around=around),
                torch.tensor(held),
            )
        )
    return found


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("size", "around"), [(2, False), (4, True), pytest.param(3, True, marks=pytest.mark.slow)])
def test_what_one_sum_returns_is_what_the_next_adds_up(size: int, around: bool) -> None:
    ranks = run_rows(partial(rounds, around=around), size)
    for step, rows in enumerate((4, 23)):
        residual, xs = part(99, rows), [part(rank, rows) for rank in range(size)]
        for layer in range(3):
            residual = residual + rank_sum_torch([x * (layer + 1) for x in xs])
            xs = [weights().of(residual.clone())] * size
        for found in ranks:
            normed, completed, gathered, total, held = found[step]
            torch.testing.assert_close(normed, xs[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(completed, residual, rtol=1e-4, atol=1e-4)
            assert torch.equal(completed, ranks[0][step][1])
            assert torch.equal(gathered, torch.cat([part(rank, rows, width=3) for rank in range(size)], 1)[:, :-1])
            assert torch.equal(total, rank_sum_torch([part(rank, rows) for rank in range(size)]))
            assert bool(held) == (rows == 4)


def test_what_no_launch_takes() -> None:
    memory = torch.empty(SharedRows.nbytes(2, SLOT, PROGRAMS), dtype=torch.uint8)
    shared = SharedRows.over(0, SLOT, PROGRAMS, memory, [memory.data_ptr()] * 2)
    assert takes_rows(torch.zeros(10, HIDDEN), shared)
    assert not takes_rows(torch.zeros(11, HIDDEN), shared)
    assert not takes_rows(torch.zeros(2, 6, dtype=torch.float16), shared)
    assert not takes_rows(torch.zeros(4, HIDDEN).t(), shared)
    assert not takes_rows(torch.zeros(2, HIDDEN, dtype=torch.float64), shared)
    rows = PeerRows(shared)
    assert (rows.serves(SLOT), rows.serves(SLOT + 16), rows.serves(8), rows.serves(0)) == (True, False, False, False)


def test_whoever_waits_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag is then ahead of every program's count, for as long as that may matter."""
    memory = torch.empty(SharedRows.nbytes(2, SLOT, PROGRAMS), dtype=torch.uint8)
    shared = SharedRows.over(1, SLOT, PROGRAMS, memory, [memory.data_ptr()] * 2)
    shared.uses.copy_(torch.tensor([7, 9, 8]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    PeerRows(shared).let_go()
    assert int(shared.flags.min()) - int(shared.uses.max()) == FOR_GOOD
