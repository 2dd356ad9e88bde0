"""Sums over ranks that write into each other's memory: several processes, launch after launch, against sums in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from inferometer.kernels.mailbox import ABSENT, Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import (
    adds,
    pairs,
    rank_sum,
    rank_sum_add,
    rank_sum_norm,
    rank_sum_norm_torch,
    rank_sum_torch,
    sums,
    sums_rows,
)
from inferometer.model.spec import NormKind
from rank_processes import run_ranks

EPSILON = 1e-5


def part(rank: int, step: int, rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, hidden, generator=draw).to(dtype)
    if step == 1:  # words that look as if they had not come, a zero with a sign, and what is infinite
        x.view(torch.int32)[0, :4] = -1
        x[0, 10:14], x[0, 14] = -0.0, torch.inf
    return x


def weights(kind: NormKind, hidden: int, dtype: torch.dtype) -> NormWeights:
    draw = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(2, hidden, generator=draw).to(dtype)
    return NormWeights(kind, EPSILON, weight, bias if kind == "layer" else None)


@dataclass(frozen=True)
class Case:
    """Launches one behind the other, each of so many rows."""

    kind: NormKind | None
    dtype: torch.dtype
    hidden: int
    rows: tuple[int, ...] = (1, 3, 1)
    chunk: int | None = None
    """Words, of a sum that is added to the stream and not normed."""
    paired: bool = False

    def run(self, box: Mailbox) -> list[tuple[Tensor, ...]]:
        found: list[tuple[Tensor, ...]] = []
        for step, count in enumerate(self.rows):
            x = part(box.rank, step, count, self.hidden, self.dtype)
            if self.chunk is not None:
                assert adds(x, box, self.chunk)
                found.append((rank_sum_add(x, part(99, step, count, self.hidden, self.dtype), box, chunk=self.chunk, paired=self.paired),))
            elif self.kind is None:
                found.append((rank_sum(x, box, paired=self.paired),))
            else:
                residual = part(99, step, count, self.hidden, self.dtype)
                found.append((rank_sum_norm(x, residual, weights(self.kind, self.hidden, self.dtype), box, paired=self.paired), residual))
        return found

    def check(self, results: list[list[tuple[Tensor, ...]]]) -> None:
        close = rounding(self.dtype)
        for step, count in enumerate(self.rows):
            got = [found[step] for found in results]
            for of_ranks in zip(*got, strict=True):
                assert same(list(of_ranks))
            parts = [part(rank, step, count, self.hidden, self.dtype) for rank in range(len(results))]
            exact = torch.stack([x.double() for x in parts]).sum(0)
            if self.chunk is not None:
                residual = part(99, step, count, self.hidden, self.dtype)
                assert_close(got[0][0], residual + rank_sum_torch(parts), close)
                assert_close(got[0][0].double(), exact + residual.double(), 3e-2)
            elif self.kind is None:
                assert_close(got[0][0], rank_sum_torch(parts), close)
                assert_close(got[0][0].double(), exact, 2e-2)
            else:
                residual = part(99, step, count, self.hidden, self.dtype)
                exact += residual.double()
                normed = rank_sum_norm_torch(parts, residual, weights(self.kind, self.hidden, self.dtype))
                assert_close(got[0][1], residual, close)
                assert_close(got[0][1].double(), exact, 3e-2)
                assert_close(got[0][0], normed, 2e-2)


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got, want, equal_nan=True, rtol=tolerance, atol=tolerance)


CASES = (
    Case(None, torch.bfloat16, 96),
    Case(None, torch.float16, 36, (2, 5)),
    Case("layer", torch.bfloat16, 80, (1, 5, 2)),
    Case("rms", torch.float32, 36, (4, 1)),
    Case(None, torch.float32, 6, (1,)),
    Case(None, torch.bfloat16, 80, (1, 2, 1), chunk=32),
    Case(None, torch.float32, 36, (1, 2), chunk=32),
)
CASES += tuple(replace(case, paired=True) for case in CASES)


def run_cases(box: Mailbox) -> tuple[list[list[tuple[Tensor, ...]]], bool]:
    return [case.run(box) for case in CASES], bool((box.words == ABSENT).all())


def same(tensors: list[Tensor]) -> bool:
    """Bit for bit, NaNs too."""
    return all(torch.equal(tensors[0].view(torch.int16), other.view(torch.int16)) for other in tensors[1:])


def rounding(dtype: torch.dtype) -> float:
    """Triton's interpreter cuts bfloat16 off where a GPU rounds."""
    return 2e-2 if dtype == torch.bfloat16 else 0.0


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("size", [2, 4, pytest.param(3, marks=pytest.mark.slow)])
def test_every_rank_has_the_sum_and_its_norm(size: int) -> None:
    results: list[tuple[list[list[tuple[Tensor, ...]]], bool]] = run_ranks(run_cases, size, 2048, 2)
    assert all(emptied for _, emptied in results)
    for index, case in enumerate(CASES):
        case.check([found[index] for found, _ in results])


def box_of(size: int, room: int, programs: int = 4) -> Mailbox:
    words = torch.empty(Mailbox.shape(size, room, programs), dtype=torch.int64)
    return Mailbox.over(0, words, [words.data_ptr()] * size)


def test_what_does_not_fit_is_told_apart_before_a_launch() -> None:
    box = box_of(2, 1024)
    assert sums(torch.zeros(4, 4096, dtype=torch.bfloat16), box)
    assert not sums(torch.zeros(5, 4096, dtype=torch.bfloat16), box)
    assert not sums(torch.zeros(0, dtype=torch.bfloat16), box)
    assert adds(torch.zeros(1, 1024, dtype=torch.bfloat16), box)
    assert not adds(torch.zeros(2, 1024, dtype=torch.bfloat16), box)
    assert not adds(torch.zeros(1, 2048, dtype=torch.float64), box)
    assert not sums(torch.zeros(3, dtype=torch.bfloat16), box)  # no whole number of words
    assert not sums(torch.zeros(4, 8).T, box)
    assert not sums(torch.zeros(8, dtype=torch.float64), box)
    assert sums_rows(torch.zeros(4, 4096, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(5, 4096, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(1, 4098, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(1, 16384, dtype=torch.bfloat16), box_of(16, 4096))


def test_words_go_in_pairs_where_all_of_them_can() -> None:
    x = torch.zeros(3, 4096, dtype=torch.bfloat16)
    assert pairs(x, 1024)
    assert pairs(x[0, 8:], 1022)
    assert not pairs(x[0, 4:], 1022)  # from the midst of a pair
    assert not pairs(x, 341)  # a row ends there
    assert not pairs(torch.zeros(3, 4, dtype=torch.bfloat16), 2)  # the sum does


def test_of_more_ranks_rows_may_be_less_wide() -> None:
    assert sums_rows(torch.zeros(1, 16384, dtype=torch.bfloat16), box_of(4, 4096))
