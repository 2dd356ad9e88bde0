"""Ranks that share one GPU, a stream and memory of its own each: their launches say to each other what they would say between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.engine.graph import Graph
from inferometer.kernels.mailbox import ABSENT, Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_rows import ALIGNED, ROOMS, SharedRows, rank_rows, shared_rows
from inferometer.kernels.rank_sum import rank_sum, rank_sum_add, rank_sum_norm, rank_sum_torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROGRAMS, ROOM_WORDS = 8, 8192
"""Few enough that the launches of four ranks run at once on any GPU."""
SIZES = (2, 3, 4)
TYPED = ((2, torch.bfloat16), (3, torch.float32), (4, torch.bfloat16))
ROWS = (1, 3, 7, 64, 333)
NORMED: dict[int, Any] = {4096: "layer", 520: "rms"}
"""Norms by width: few launches, each of which is compiled."""
LATE_CLOCKS = 400_000
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


class Beside:
    """The ranks, empty memory between them.

    What is launched for the first time is loaded, and loading may wait for the device, where one rank's launch waits for the others': so
    all ranks launch one thing before any launches another that is new.
    """

    def __init__(self, size: int) -> None:
        self.size, self.device = size, torch.device("cuda", torch.cuda.current_device())
        make: Any = torch.cuda.Stream
        self.streams = [make(self.device) for _ in range(size)]
        slot = -(-(max(ROWS) + size) * max(NORMED) * 4 // size // ALIGNED) * ALIGNED
        memory = [torch.empty(SharedRows.nbytes(size, slot, PROGRAMS), dtype=torch.uint8, device=self.device) for _ in range(size)]
        places = [each.data_ptr() for each in memory]
        self.rows = [SharedRows.over(rank, slot, PROGRAMS, memory[rank], places) for rank in range(size)]
        words = [torch.empty(Mailbox.shape(size, ROOM_WORDS, PROGRAMS), dtype=torch.int64, device=self.device) for _ in range(size)]
        places = [each.data_ptr() for each in words]
        # A launch that begins early holds a processor that another rank's may need.
        self.boxes = [Mailbox.over(rank, words[rank], places, overlaps=False) for rank in range(size)]
        self._turn = 0
        torch.cuda._sleep(1)
        torch.cuda.synchronize()

    def room(self) -> int:
        """Where the next rows go."""
        self._turn = (self._turn + 1) % ROOMS
        return self._turn

    def each(self, work: Callable[[int], object], late: int) -> None:
        """work(rank) on each rank's stream. late: which of them begins behind the others, or none of them."""
        for rank, stream in enumerate(self.streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                if rank == late:
                    torch.cuda._sleep(LATE_CLOCKS)
                work(rank)

    def ran(self, work: Callable[[int], Any], late: int) -> list[Any]:
        """What it is on each rank, once all have ended."""
        found: list[Any] = [None] * self.size

        def kept(rank: int) -> None:
            found[rank] = work(rank)

        self.each(kept, late % (self.size + 1))
        torch.cuda.synchronize()
        return found


def drawn(count: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator("cuda").manual_seed(rows * 10_000 + width)
    return torch.randn(count, rows, width, generator=draw, device="cuda").to(dtype)


def norm_of(width: int, dtype: torch.dtype, kind: Any) -> NormWeights:
    weight, bias = drawn(2, 1, width, dtype)
    return NormWeights(kind, 1e-5, weight[0], bias[0] if kind == "layer" else None)


def assert_normed(found: Sequence[Tensor], stream: Tensor, norm: NormWeights) -> None:
    wanted = norm.of(stream.clone())
    for each in found:
        assert torch.equal(each, found[0])
        torch.testing.assert_close(each.float(), wanted.float(), **CLOSE)


@pytest.mark.parametrize(("size", "dtype"), TYPED)
@pytest.mark.parametrize("around", [False, True])
def test_each_adds_up_rows_of_its_own(size: int, around: bool, dtype: torch.dtype) -> None:
    ranks = Beside(size)
    for width, kind in NORMED.items():
        for step, rows in enumerate(ROWS):
            *given, before = drawn(size + 1, rows, width, dtype)
            wanted, turn = rank_sum_torch(given), ranks.room()
            for found in ranks.ran(lambda rank, x=given, at=turn: rank_rows(x[rank], ranks.rows[rank], at, around=around), step):
                assert torch.equal(found, wanted), (width, rows)
            norm, streams, turn = norm_of(width, dtype, kind), [before.clone() for _ in given], ranks.room()
            normed = ranks.ran(
                lambda rank, x=given, at=turn, stream=streams, norm=norm: rank_rows(
                    x[rank], ranks.rows[rank], at, stream[rank], norm, around=around
                ),
                step + 1,
            )
            whole, each = before + wanted, shared_rows(rows, size)
            for rank, stream in enumerate(streams):
                own = slice(rank * each, (rank + 1) * each)
                assert torch.equal(stream[own], whole[own]), (width, rows, rank)
            assert_normed(normed, whole, norm)


@pytest.mark.parametrize(("size", "dtype"), TYPED)
@pytest.mark.parametrize("paired", [False, True])
def test_all_send_words_to_all(size: int, paired: bool, dtype: torch.dtype) -> None:
    ranks = Beside(size)
    for width, kind in NORMED.items():
        for step, rows in enumerate((1, 13)):
            *given, before = drawn(size + 1, rows, width, dtype)
            wanted = rank_sum_torch(given)
            whole, norm = before + wanted, norm_of(width, dtype, kind)
            own = [x.clone() for x in given]
            for found in ranks.ran(lambda rank, x=own: rank_sum(x[rank], ranks.boxes[rank], paired=paired), step):
                assert torch.equal(found, wanted), (width, rows)
            own, streams = [x.clone() for x in given], [before.clone() for _ in given]
            normed = ranks.ran(
                lambda rank, x=own, to=streams, norm=norm: rank_sum_norm(x[rank], to[rank], norm, ranks.boxes[rank], paired=paired),
                step + 1,
            )
            assert all(torch.equal(stream, whole) for stream in streams), (width, rows)
            assert_normed(normed, whole, norm)
            if rows == 1:
                own, to = [x.clone() for x in given], [before.clone() for _ in given]
                added = ranks.ran(
                    lambda rank, x=own, to=to: rank_sum_add(x[rank], to[rank], ranks.boxes[rank], chunk=256, paired=paired), step + 2
                )
                assert all(torch.equal(each, whole) for each in added), width
    assert all(bool((box.words == ABSENT).all()) for box in ranks.boxes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("new", [False, True])
def test_graphs_of_sums_again_and_again_with_one_rank_late(size: int, new: bool) -> None:
    ranks = Beside(size)
    given = [drawn(size, rows, 4096, torch.bfloat16) for rows in (1, 64, 7, 333)]
    wanted = [rank_sum_torch(parts) for parts in given]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(size)]
    own = [[parts[rank].clone() for parts in given[::2]] for rank in range(size)]

    def by_rows(rank: int, which: int) -> Tensor:
        return rank_rows(given[which][rank], ranks.rows[rank], which % ROOMS, around=new)

    def by_words(rank: int, which: int) -> Tensor:
        return rank_sum(own[rank][which].copy_(given[2 * which][rank]), ranks.boxes[rank], paired=new)

    for which in range(len(given)):
        for found in ranks.ran(lambda rank, which=which: by_rows(rank, which), size):
            wrong[0].add_((found != wanted[which]).sum())
    for which in range(len(own[0])):
        for found in ranks.ran(lambda rank, which=which: by_words(rank, which), size):
            wrong[0].add_((found != wanted[2 * which]).sum())
    assert int(wrong[0]) == 0

    def work(rank: int) -> None:
        for which, total in enumerate(wanted):
            wrong[rank].add_((by_rows(rank, which) != total).sum())
        for which, total in enumerate(wanted[::2]):
            wrong[rank].add_((by_words(rank, which) != total).sum())

    graphs = []
    for rank, stream in enumerate(ranks.streams):
        with torch.cuda.stream(stream):
            graphs.append(Graph(lambda rank=rank: work(rank), ranks.device, torch.cuda.graph_pool_handle()))
    torch.cuda.synchronize()
    for turn in range(30):
        ranks.each(lambda rank: graphs[rank](), turn % (size + 1))
    torch.cuda.synchronize()
    assert [int(each) for each in wrong] == [0] * size
