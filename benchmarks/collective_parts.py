"""What benchmarks/collectives.py measures, part by part. A part yields its rows; those of rank 0 count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from collective_rank import CALLS, DTYPE, HIDDEN, KIB, MIB, Rank, Row
from torch import Tensor

from inferometer.engine.parallel import peer_rows
from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.peer_memory import PeerMemory, open_mailbox
from inferometer.engine.parallel.peer_rows import PeerRows
from inferometer.engine.parallel.sum_choice import LIKE, SCATTERED, SIZES, WAYS
from inferometer.engine.parallel.sum_tuning import agrees, times_s
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum, rank_sum_add, rank_sum_norm, rank_sum_torch
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import candidates

SMALL = (8 * KIB, 64 * KIB, 256 * KIB, 1 * MIB)
LARGE = (16 * MIB, 64 * MIB)


def mailbox_part(rank: Rank) -> Iterator[Row]:
    """Ours, and what a hop and bytes over the link cost."""
    box = open_mailbox(2048, rank.peers())
    for nbytes in SMALL:
        parts = rank.parts(nbytes)
        for _ in range(5):
            x = parts[rank.rank].clone()
            rank.check("ours", rank_sum(x, box), parts)
        residual = parts[0].clone()
        exact = residual.double() + torch.stack([part.double() for part in parts]).sum(0)
        x = parts[rank.rank].clone()
        normed = rank_sum_norm(x, residual, rank.norm, box)
        torch.testing.assert_close(residual.double(), exact, rtol=2e-2, atol=3e-2)
        weight, bias = rank.weights.double()
        wanted = torch.nn.functional.layer_norm(exact, (HIDDEN,), weight, bias, rank.norm.epsilon)
        torch.testing.assert_close(normed.double(), wanted, rtol=5e-2, atol=1e-1)
        assert rank.same(residual)
        assert rank.same(normed)
        yield from timed(rank, box, nbytes)
    x, residual = torch.zeros(2, 1, HIDDEN, dtype=DTYPE, device=rank.device)
    for chunk in (64, 128, 1024):
        us = rank.microseconds(lambda chunk=chunk: rank_sum_add(x, residual, box, chunk=chunk))
        yield {"what": f"ours: sum of {chunk}, residual", "bytes": 8 * KIB, "us": us}
        us = rank.microseconds(lambda chunk=chunk: rank_sum_add(x, residual, box, chunk=chunk, paired=True))
        yield {"what": f"ours, in pairs: sum of {chunk}, residual", "bytes": 8 * KIB, "us": us}
    for paired in (False, True):
        stress(rank, box, paired=paired)
    word = torch.zeros(4, dtype=DTYPE, device=rank.device)
    yield {"what": "ours: one word", "bytes": 8, "us": rank.microseconds(lambda: rank_sum(word, box))}
    yield from chain(rank, box)


def timed(rank: Rank, box: Mailbox, nbytes: int) -> Iterator[Row]:
    x, residual = torch.zeros(2, nbytes // (DTYPE.itemsize * HIDDEN), HIDDEN, dtype=DTYPE, device=rank.device)
    yield {"what": "ours: sum", "bytes": nbytes, "us": rank.microseconds(lambda: rank_sum(x, box))}
    both = rank.microseconds(lambda: rank_sum_norm(x, residual, rank.norm, box))
    yield {"what": "ours: sum, residual, norm", "bytes": nbytes, "us": both}
    both = rank.microseconds(lambda: rank_sum_norm(x, residual, rank.norm, box, paired=True))
    yield {"what": "ours, in pairs: sum, residual, norm", "bytes": nbytes, "us": both}
    yield {"what": "residual, norm alone", "bytes": nbytes, "us": rank.microseconds(lambda: rank.norm.of(residual, x))}


def stress(rank: Rank, box: Mailbox, rounds: int = 100, *, paired: bool = False) -> None:
    """Sums of many sizes one behind the other, ranks out of step by turns: every bit is that of the reference."""
    shapes = [1, 3, 130, 1, 1, 200, 2, 64] * 4
    torch.manual_seed(0)
    parts = [[torch.randn(rows, HIDDEN).to(rank.device, DTYPE) for rows in shapes] for _ in range(rank.size)]
    wanted = [rank_sum_torch([own[i] for own in parts]) for i in range(len(shapes))]
    room = [torch.empty_like(part) for part in parts[0]]
    wrong = torch.zeros((), dtype=torch.int64, device=rank.device)

    def run() -> None:
        for mine, x, total in zip(parts[rank.rank], room, wanted, strict=True):
            x.copy_(mine)
            rank_sum(x, box, paired=paired)
            wrong.add_((x != total).sum())

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        run()
    for i in range(rounds):
        if i % rank.size == rank.rank:
            torch.cuda._sleep(20000 * (i % 7))
        graph.replay()
    torch.cuda.synchronize()
    assert int(wrong) == 0, f"{int(wrong)} numbers are wrong"


def chain(rank: Rank, box: Mailbox) -> Iterator[Row]:
    """What the sum adds between two products of one row, whose weights come from memory, beside a norm in the same place."""
    for hidden in (HIDDEN, 7168):
        yield from products_of(rank, box, hidden)


def products_of(rank: Rank, box: Mailbox, hidden: int) -> Iterator[Row]:
    weights = [torch.randn(hidden, hidden, device=rank.device).to(DTYPE) / 64 for _ in range(8)]
    launch = candidates(1, hidden)[0]
    x, residual = torch.zeros(1, hidden, dtype=DTYPE, device=rank.device), torch.zeros(1, hidden, dtype=DTYPE, device=rank.device)
    deltas = torch.empty_like(x)
    norm = NormWeights("layer", 1e-5, *torch.zeros(2, hidden, dtype=DTYPE, device=rank.device))

    def products(between: Callable[[Tensor], Tensor], norm: NormWeights | None = None) -> None:
        state = x
        for weight in weights:
            state = between(skinny_triton(state, weight, launch=launch, norm=norm, out=deltas))

    ways: list[tuple[str, Callable[[Tensor], Tensor], NormWeights | None]] = [
        ("products alone", lambda y: y, None),
        ("products that norm", lambda y: y, norm),
        ("products and norms", lambda y: norm.of(residual, y), None),
        ("products, sums and norms", lambda y: rank_sum_norm(y, residual, norm, box), None),
    ]
    ways += [
        (f"sums of {chunk}, products that norm", lambda y, chunk=chunk: rank_sum_add(y, residual, box, chunk=chunk), norm)
        for chunk in (32, 64, 128, 256, 1024)
    ]
    for what, between, inside in ways:
        us = rank.microseconds(lambda between=between, inside=inside: products(between, inside), 10) / len(weights)
        yield {"what": what, "bytes": DTYPE.itemsize * hidden, "us": us}


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


def beside(rank: Rank, first: Callable[[], object], second: Callable[[], object]) -> float:
    """Of a call of each, ten times on two streams."""
    other = torch.cuda.Stream()

    def both() -> None:
        here = torch.cuda.current_stream()
        other.wait_stream(here)
        with torch.cuda.stream(other):
            for _ in range(10):
                second()
        for _ in range(10):
            first()
        here.wait_stream(other)

    return rank.microseconds(both, 1) / 10


def torch_part(rank: Rank) -> Iterator[Row]:
    """torch's kernels over symmetric memory."""
    peers, ops = rank.peers(), torch.ops.symm_mem
    memory, name = PeerMemory(max(LARGE), peers), peers.name
    for nbytes in (*SMALL, *LARGE):
        parts = rank.parts(nbytes)
        x = memory.own[:nbytes].view(DTYPE).view(-1, HIDDEN)
        if nbytes <= MIB:
            x.copy_(parts[rank.rank])
            rank.meet()
            rank.check("one shot", ops.one_shot_all_reduce(x, "sum", name), parts)
            yield {"what": "torch one shot", "bytes": nbytes, "us": rank.microseconds(lambda x=x: ops.one_shot_all_reduce(x, "sum", name))}
        x.copy_(parts[rank.rank])
        rank.meet()
        ops.two_shot_all_reduce_(x, "sum", name)
        rank.check("two shot", x, parts)
        x.zero_()
        took = rank.microseconds(lambda x=x: ops.two_shot_all_reduce_(x, "sum", name), CALLS if nbytes <= MIB else 10)
        yield {"what": "torch two shot", "bytes": nbytes, "us": took}
    yield {"what": "barrier", "bytes": 0, "us": rank.microseconds(lambda: memory._handle.barrier(0))}


def nccl_part(rank: Rank) -> Iterator[Row]:
    """NCCL alone in the process."""
    nccl = rank.nccl()
    for nbytes in (*SMALL, *LARGE):
        parts = rank.parts(nbytes)
        x = parts[rank.rank].clone()
        nccl.sum(x)
        rank.check("NCCL", x, parts)
        x.zero_()
        calls = CALLS if nbytes <= MIB else 10
        yield {"what": "NCCL", "bytes": nbytes, "us": rank.microseconds(lambda x=x: nccl.sum(x), calls)}
    x = torch.zeros(8192, HIDDEN, dtype=DTYPE, device=rank.device)
    y, weight = (torch.randn(shape, device=rank.device).to(DTYPE) for shape in ((8192, 2048), (2048, HIDDEN)))
    out = torch.empty(8192, HIDDEN, dtype=DTYPE, device=rank.device)
    yield {
        "what": "both at once (NCCL)",
        "bytes": x.nbytes,
        "us": beside(rank, lambda: torch.mm(y, weight, out=out), lambda: nccl.sum(x)),
    }


def order_part(rank: Rank) -> Iterator[Row]:
    """All memory first, then captured sums of NCCL, then both in one graph."""
    box = open_mailbox(2048, rank.peers())
    nccl = rank.nccl()
    large, small = (torch.zeros(rows, HIDDEN, dtype=DTYPE, device=rank.device) for rows in (2048, 1))

    def both() -> None:
        nccl.sum(large)
        rank_sum(small, box)

    rank_sum(small, box)
    yield {"what": "ours and NCCL captured together", "bytes": large.nbytes, "us": rank.microseconds(both, 10)}
    yield {"what": "ours and NCCL, not captured", "bytes": large.nbytes, "us": rank.microseconds(both, 10, captured=False)}
    again = open_mailbox(1024, rank.peers())
    yield {"what": "ours, memory made after NCCL", "bytes": small.nbytes, "us": rank.microseconds(lambda: rank_sum(small, again), 10)}


PARTS = {
    "ways": ways_part,
    "mailbox": mailbox_part,
    "rows": rows_part,
    "overlap": overlap_part,
    "collective": collective_part,
    "torch": torch_part,
    "nccl": nccl_part,
    "order": order_part,
}
