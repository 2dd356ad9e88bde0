"""Sums of many rows over GPUs, of which each adds up its own, beside the other ways. Parts of collectives.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from collective_rank import DTYPE, HIDDEN, KIB, MIB, Rank, Row
from torch import Tensor

from inferometer.engine.parallel import peer_rows
from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.peer_memory import PeerMemory
from inferometer.engine.parallel.peer_rows import PeerRows
from inferometer.engine.parallel.sum_choice import LIKE, SCATTERED, SIZES, WAYS
from inferometer.engine.parallel.sum_tuning import agrees, times_s


def collective_part(rank: Rank) -> Iterator[Row]:
    """What the engine uses: every way, and the sum of products in pieces."""
    ranks = GpuCollective(rank.host, rank.store, rank.device, invariant=False, limit=timedelta(seconds=30))
    assert ranks.linked
    for nbytes in (8 * KIB, MIB, 64 * MIB):
        parts = rank.parts(nbytes)
        for way in WAYS:
            x = parts[rank.rank].clone()
            if ranks.able(way, x):
                rank.check(way, ranks.sum_by(way, x), parts)
        gathered = ranks.gather(parts[rank.rank])
        assert torch.equal(gathered, torch.cat(parts, 1))
    for size in SIZES:
        for way, seconds in times_s(ranks, size).items():
            yield {"what": way, "bytes": size, "us": seconds * 1e6}
    ranks.choice = dict.fromkeys(SIZES, "rows")
    for inputs in (HIDDEN // rank.size, 4 * HIDDEN // rank.size):
        yield from behind_product(rank, ranks, inputs)


def ways_part(rank: Rank) -> Iterator[Row]:
    """What choosing a way measures: every way at every size, and large sums behind the products of a layer. Then whether the bits are those
    that they should be, and how many programs a large sum is best cut into."""
    ranks = GpuCollective(rank.host, rank.store, rank.device, invariant=False, limit=timedelta(seconds=30))
    assert ranks.linked
    for size in SIZES:
        for way, seconds in times_s(ranks, size).items():
            yield {"what": way, "bytes": size, "us": seconds * 1e6}
    ranks.disconnect()
    wrong = [(way, size) for way in LIKE for size in SIZES if not agrees(ranks, way, size)]
    assert not wrong, f"other bits: {wrong}"
    for way in sorted(SCATTERED):
        ranks.choice = dict.fromkeys(SIZES, way)
        for inputs in (HIDDEN // rank.size, 4 * HIDDEN // rank.size):
            for row in behind_product(rank, ranks, inputs):
                yield row | {"what": f"{row['what']} ({way})"}
    yield from cut(rank)


def behind_product(rank: Rank, ranks: GpuCollective, inputs: int) -> Iterator[Row]:
    """A sum of 64 MiB behind the product that makes it, as a layer of BLOOMZ-7B1 has two of for 8192 tokens."""
    x, weight = (torch.randn(shape, device=rank.device).to(DTYPE) / 16 for shape in ((8192, inputs), (inputs, HIDDEN)))
    residual = torch.zeros(8192, HIDDEN, dtype=DTYPE, device=rank.device)

    def product(y: Tensor) -> Tensor:
        return torch.mm(y, weight)

    before = residual.clone()
    whole = ranks.all_reduce(product(x))
    normed = ranks.sum_of(product, x, residual, rank.norm)
    torch.testing.assert_close(ranks.completed(residual), before + whole, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(normed, rank.norm.of(before + whole), rtol=5e-2, atol=1e-1)
    assert rank.same(normed)
    what, nbytes = f"product of {inputs}", residual.nbytes
    alone = rank.microseconds(lambda: rank.norm.of(residual, product(x)), 10)
    yield {"what": f"{what} and norm alone", "bytes": nbytes, "us": alone}
    took = rank.microseconds(lambda: ranks.sum_of(product, x, residual, rank.norm), 10)
    yield {"what": f"{what}, sum, norm", "bytes": nbytes, "us": took}
    took = rank.microseconds(lambda: ranks.sum_of(product, x, residual, rank.norm), 10, captured=False)
    yield {"what": f"{what}, sum, norm, not captured", "bytes": nbytes, "us": took}
    began = time.perf_counter()
    for _ in range(10):
        ranks.sum_of(product, x, residual, rank.norm)
    yield {"what": f"{what}, sum, norm, the host", "bytes": nbytes, "us": (time.perf_counter() - began) * 1e5}
    rank.meet()


def cut(rank: Rank) -> Iterator[Row]:
    """A large sum by more and by fewer programs."""
    x, residual = torch.zeros(2, 8192, HIDDEN, dtype=DTYPE, device=rank.device)
    peers, usual = rank.peers(), peer_rows.PROGRAMS
    for peer_rows.PROGRAMS in (1, 2, 4):
        rows = PeerRows.open(peers)
        for around in (False, True):

            def added(rows: PeerRows = rows, around: bool = around) -> Tensor:
                return rows.sum_of(lambda y: y, x, residual, rank.norm, around=around)

            what = f"{'around' if around else 'rows'}, {peer_rows.PROGRAMS} programs a processor"
            yield {"what": what, "bytes": x.nbytes, "us": rank.microseconds(added, 10)}
    peer_rows.PROGRAMS = usual


def rows_part(rank: Rank) -> Iterator[Row]:
    """How many programs a large sum is best cut into, and what copies to another GPU cost the host and the device."""
    yield from cut(rank)
    memory = PeerMemory(8 * MIB, rank.peers())
    for nbytes in (8, 8 * MIB):
        there, here = memory.of((rank.rank + 1) % rank.size)[:nbytes], torch.zeros(nbytes, dtype=torch.uint8, device=rank.device)

        def copy(there: Tensor = there, here: Tensor = here) -> Tensor:
            return there.copy_(here, non_blocking=True)

        yield {"what": "copy to a peer", "bytes": nbytes, "us": rank.microseconds(copy, 10)}
        yield {"what": "copy to a peer, not captured", "bytes": nbytes, "us": rank.microseconds(copy, 10, captured=False)}
        rank.meet()
        began = time.perf_counter()
        for _ in range(10):
            copy()
        yield {"what": "copy to a peer, the host", "bytes": nbytes, "us": rank.slowest((time.perf_counter() - began) * 1e5)}
        rank.meet()


def overlap_part(rank: Rank) -> Iterator[Row]:
    """The sum of the first half of a product while the second is computed: programs that the sum has meanwhile, and processors that the
    matrix library leaves it."""
    peers = rank.peers()
    whole = PeerRows.open(peers)
    for inputs in (HIDDEN // rank.size, 4 * HIDDEN // rank.size):
        x, weight = (torch.randn(shape, device=rank.device).to(DTYPE) / 16 for shape in ((8192, inputs), (inputs, HIDDEN)))
        residual = torch.zeros(8192, HIDDEN, dtype=DTYPE, device=rank.device)
        halves = x.chunk(2), residual.chunk(2)

        def one_by_one(x: Tensor = x, weight: Tensor = weight, residual: Tensor = residual) -> Tensor:
            return whole.sum_of(lambda y: torch.mm(y, weight), x, residual, rank.norm)

        def product(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            return torch.mm(x, weight)

        yield {"what": f"product of {inputs}, sum", "bytes": residual.nbytes, "us": rank.microseconds(one_by_one, 10)}
        for programs, left in ((0, 16), (16, 0), (16, 8), (32, 0), (32, 16), (48, 24), (64, 32)):
            torch._C._set_sm_carveout_experimental(left or None)
            if not programs:
                yield {"what": f"product of {inputs}, {left} left", "bytes": residual.nbytes, "us": rank.microseconds(product, 10)}
                continue
            some = PeerRows.open(peers, programs)
            side: Any = torch.cuda.Stream(rank.device, priority=-1)

            def both(some: PeerRows = some, side: Any = side, weight: Tensor = weight, halves: Any = halves) -> None:
                here, made, done = torch.cuda.current_stream(), torch.cuda.Event(), torch.cuda.Event()
                (first, second), (one, two) = halves
                y = torch.mm(first, weight)
                made.record(here)
                side.wait_event(made)
                with torch.cuda.stream(side):
                    some.sum_of(lambda z: z, y, one, rank.norm)
                    done.record(side)
                whole.sum_of(lambda z: torch.mm(z, weight), second, two, rank.norm)
                here.wait_event(done)

            us = rank.microseconds(both, 10)
            yield {"what": f"product of {inputs}, half by {programs}, {left} left", "bytes": residual.nbytes, "us": us}
        torch._C._set_sm_carveout_experimental(None)
