"""Sums of few rows over GPUs, in words that all send to all: what they take, and whether they hold out. Parts of collectives.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from collective_rank import DTYPE, HIDDEN, KIB, SMALL, Rank, Row
from torch import Tensor

from inferometer.engine.parallel.peer_memory import open_mailbox
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum, rank_sum_add, rank_sum_norm, rank_sum_torch
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import candidates


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
