"""What ranks say to each other: the same bits to everybody, in an order that nothing but the ranks decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum_torch
from inferometer.nn.collective import ALONE, Collective, Unlinked, side_by_side
from inferometer.nn.gloo_collective import LARGE
from inferometer.nn.stream import Stream
from rank_pool import SIZES, RankPool

SHAPES = ((1, 7), (3, 64), (LARGE // 64, 65))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def parts_of(ranks: int, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """Numbers of very different sizes, whose sum shows its order."""
    draw = torch.Generator().manual_seed(shape[0])
    return [(torch.randn(shape, generator=draw) * 10.0 ** (2 * rank % 5)).to(dtype) for rank in range(ranks)]


def sums(ranks: Collective) -> list[Tensor]:
    return [ranks.all_reduce(parts_of(ranks.size, shape, dtype)[ranks.rank]) for shape in SHAPES for dtype in DTYPES]


@pytest.mark.parametrize("ranks", SIZES)
def test_sums_are_taken_in_the_order_of_the_ranks(pool: RankPool, ranks: int) -> None:
    wanted = []
    for shape in SHAPES:
        for dtype in DTYPES:
            total = torch.zeros(shape)
            for part in parts_of(ranks, shape, dtype):
                total = total + part.float()
            wanted.append(total.to(dtype))
    for found in pool.run(ranks, sums):
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def normed(ranks: Collective) -> tuple[Tensor, Tensor]:
    residual, norm = parts_of(1, (3, 64), torch.float32)[0], NormWeights("layer", 1e-5, torch.ones(64) * 2, torch.ones(64))
    return ranks.all_reduce_norm(parts_of(ranks.size, (3, 64), torch.float32)[ranks.rank], residual, norm), residual


def test_a_residual_takes_the_sum_before_it_is_normed(pool: RankPool) -> None:
    parts, before = parts_of(2, (3, 64), torch.float32), parts_of(1, (3, 64), torch.float32)[0]
    total = before + (parts[0] + parts[1])
    for found, residual in pool.run(2, normed):
        assert torch.equal(residual, total)
        torch.testing.assert_close(found, 2 * torch.nn.functional.layer_norm(total, (64,)) + 1)


def side_by_side_of(ranks: Collective) -> list[Tensor]:
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        own = torch.arange(6).view(2, 3).to(dtype) + 40 * ranks.rank
        out = torch.full((2, 3 * ranks.size + 1), -1, dtype=dtype)[:, : 3 * ranks.size - 2]
        found += [ranks.gather(own), ranks.gather(own, out), ranks.gather(own.repeat(1, 2)[:, ::2])]
    # Bits that are no number pass as they are.
    return [*found, ranks.gather(torch.tensor([[-1, 2**31 - 1]], dtype=torch.int32).view(torch.float32)).view(torch.int32)]


@pytest.mark.parametrize("ranks", SIZES)
def test_parts_lie_side_by_side(pool: RankPool, ranks: int) -> None:
    own = [torch.arange(6).view(2, 3) + 40 * rank for rank in range(ranks)]
    whole, turned = torch.cat(own, 1), torch.cat([part.repeat(1, 2)[:, ::2] for part in own], 1)
    for found in pool.run(ranks, side_by_side_of):
        *numbers, bits = found
        for i in range(0, len(numbers), 3):
            assert torch.equal(numbers[i].long(), whole)
            assert torch.equal(numbers[i + 1].long(), whole[:, :-2])
            assert torch.equal(numbers[i + 2].long(), turned)
        assert bits.tolist() == [[-1, 2**31 - 1] * ranks]


def agreed(ranks: Collective) -> tuple[int, object]:
    return ranks.minimum(7 - ranks.rank), ranks.broadcast({"rank": ranks.rank})


def test_ranks_agree(pool: RankPool) -> None:
    assert pool.run(4, agreed) == [(4, {"rank": 0})] * 4


def test_one_rank_alone_changes_nothing() -> None:
    x, residual = torch.randn(2, 8), torch.randn(2, 8)
    assert ALONE.all_reduce(x) is x
    assert ALONE.gather(x) is x
    assert torch.equal(ALONE.gather(x, torch.empty(2, 5)), x[:, :5])
    assert (ALONE.minimum(3), ALONE.broadcast("a")) == (3, "a")
    norm = NormWeights("rms", 1e-5, None, None)
    wanted = norm.of(residual + x)
    assert torch.equal(ALONE.all_reduce_norm(x, residual, norm), wanted)


def test_a_stream_in_two_parts_is_added_up_before_a_map_that_norms_by_itself() -> None:
    """Where ranks do so in less time; what makes the second part is asked for once."""

    class Adding(Unlinked):
        def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
            return residual.add_(2 * x) if x.shape[0] < 3 else None

    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(x)
        return x + 1

    for rows in (2, 3):
        x, delta = torch.ones(rows, 4), torch.ones(rows, 4)
        stream = Stream(x, delta, Adding(0, 2), function).summed
        assert stream.x is x
        assert stream.function is None
        if rows < 3:
            assert stream.delta is None
            assert torch.equal(x, torch.full_like(x, 5))
        else:
            assert torch.equal(stream.delta, torch.full_like(x, 2))  # type: ignore[arg-type]
    assert len(calls) == 2
    alone = Stream(x, delta)
    assert alone.summed is alone


def test_a_rank_by_itself_leaves_out_the_others() -> None:
    x, unlinked = torch.randn(2, 3), Unlinked(1, 4)
    assert (unlinked.rank, unlinked.size) == (1, 4)
    assert unlinked.all_reduce(x) is x
    assert unlinked.gather(x).shape == (2, 12)
    assert unlinked.gather(x, torch.empty(2, 10)).shape == (2, 10)


def test_helpers_by_hand() -> None:
    parts = torch.arange(12).view(3, 2, 2)
    assert side_by_side(parts).tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    for columns in range(1, 7):
        assert torch.equal(side_by_side(parts, torch.empty(2, columns, dtype=torch.int64)), side_by_side(parts)[:, :columns])
    # 256 + 1 is 256 in bfloat16; the sum is rounded once.
    assert rank_sum_torch(torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)).tolist() == [258.0]
