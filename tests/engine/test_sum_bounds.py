"""What tests on GPUs hold a library's sums to, tried here on sums that are rounded as such a library rounds them."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum_torch
from sum_bounds import assert_within, norm_error, stream_error, sum_error

ROWS, HIDDEN = 200, 512  # a hundred thousand numbers in each of 24 orders


def ring(parts: Tensor, size: int) -> Tensor:
    """As a ring of ranks adds up: a run of numbers begins at each rank, and is rounded at every one that it comes to."""
    found = torch.empty_like(parts[0])
    for start, run in enumerate(torch.arange(parts[0].numel()).chunk(size)):
        total = parts[start].view(-1)[run]
        for step in range(1, size):
            total = total + parts[(start + step) % size].view(-1)[run]
        found.view(-1)[run] = total
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_order_of_rounded_sums_is_within_the_bounds(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    parts, residual = torch.randn(4, ROWS, HIDDEN, generator=draw).to(dtype), torch.randn(ROWS, HIDDEN, generator=draw).to(dtype)
    weight, bias = torch.randn(2, HIDDEN, generator=draw).to(dtype)
    norm = NormWeights("layer", 1e-5, weight, bias)
    wanted = rank_sum_torch(parts)
    stream = residual + wanted
    found = [ring(parts[list(order)], 4) for order in permutations(range(4))]
    for total in found:
        assert_within(total, wanted, sum_error(parts))
        assert_within(residual + total, stream, stream_error(parts, stream))
        assert_within(norm.of((residual + total).clone()), norm.of(stream.clone()), norm_error(stream, stream_error(parts, stream), norm))


def test_a_part_that_is_missing_is_beyond_them() -> None:
    parts = torch.randn(4, 8, HIDDEN, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    norm = NormWeights("layer", 1e-5, None, None)
    wanted, short = rank_sum_torch(parts), rank_sum_torch(parts[:3])
    with pytest.raises(AssertionError, match="of 4096"):
        assert_within(short, wanted, sum_error(parts))
    with pytest.raises(AssertionError, match="of 4096"):
        assert_within(norm.of(short.clone()), norm.of(wanted.clone()), norm_error(wanted, stream_error(parts, wanted), norm))
    one_off = norm.of(wanted.clone())
    one_off[0, 0] += 0.05
    with pytest.raises(AssertionError, match="1 of 4096"):
        assert_within(one_off, norm.of(wanted.clone()), norm_error(wanted, 0.0, norm))
