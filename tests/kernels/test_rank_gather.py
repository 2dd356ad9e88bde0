"""What ranks hold, side by side: several processes that write into each other's memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferometer.kernels.mailbox import ABSENT, Mailbox
from inferometer.kernels.rank_gather import gathers, rank_gather
from inferometer.nn.collective import side_by_side
from rank_processes import run_ranks

SHAPES = {torch.int64: (1, 2), torch.bfloat16: (3, 5), torch.float32: (2, 600), torch.uint8: (3, 3), torch.float64: (2, 1)}


def part(rank: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(rank)
    x = torch.randint(0, 256, (rows, columns * dtype.itemsize), generator=draw, dtype=torch.uint8).view(dtype)
    x.view(torch.uint8)[0] = 255  # as a whole number of eight bytes, what has not come
    return x


def room(rows: int, columns: int, size: int, dtype: torch.dtype) -> Tensor:
    """Without a place for the last column, in rows that begin further apart."""
    return torch.zeros(rows, columns * size + 3, dtype=dtype)[:, : columns * size - 1]


def gather(box: Mailbox) -> tuple[list[Tensor], bool]:
    found = []
    for dtype, (rows, columns) in SHAPES.items():
        whole = torch.empty(rows, columns * box.size, dtype=dtype)
        x = part(box.rank, rows, columns, dtype)
        found += [rank_gather(x, whole, box), rank_gather(x, room(rows, columns, box.size, dtype), box)]
    return found, bool((box.words == ABSENT).all())


@pytest.mark.usefixtures("interpreted")
def test_every_rank_has_all_side_by_side_bit_for_bit() -> None:
    size = 3
    results: list[tuple[list[Tensor], bool]] = run_ranks(gather, size, 2048, 2)
    for found, emptied in results:
        assert emptied
        for (dtype, (rows, columns)), whole, cut in zip(SHAPES.items(), found[::2], found[1::2], strict=True):
            parts = torch.stack([part(rank, rows, columns, dtype) for rank in range(size)])
            for got, out in ((whole, None), (cut, room(rows, columns, size, dtype))):
                assert torch.equal(got.contiguous().view(torch.uint8), side_by_side(parts, out).contiguous().view(torch.uint8))


def test_what_does_not_fit_is_told_apart_before_a_launch() -> None:
    words = torch.empty(Mailbox.shape(2, 1024, 2), dtype=torch.int64)
    box = Mailbox.over(0, words, [words.data_ptr()] * 2)
    x = torch.zeros(4, 512)
    assert gathers(x, torch.zeros(4, 1024), box)
    assert not gathers(torch.zeros(5, 512), torch.zeros(5, 1024), box)
    assert not gathers(x[:0], torch.zeros(0, 1024), box)
    assert not gathers(x.T, torch.zeros(512, 8), box)
    assert not gathers(x, torch.zeros(1024, 4).T, box)
