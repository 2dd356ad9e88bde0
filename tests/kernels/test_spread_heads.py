"""Queries and keys that are spread before a cache in 8 bits: scores stay, and no element is far larger than the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.kernels.rotary_write import rotate
from inferometer.kernels.spread_heads import spread, spread_heads, spread_heads_triton

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU = torch.device("cpu")


def angles(tokens: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    turn = torch.rand(tokens, 1, size // 2, generator=torch.Generator().manual_seed(seed)) * 6
    return torch.cat((turn.cos(), turn.cos()), -1), torch.cat((-turn.sin(), turn.sin()), -1)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 160))
def test_spreading_is_orthogonal_and_its_own_inverse(size: int) -> None:
    x = torch.randn(3, size, dtype=torch.float64)
    torch.testing.assert_close(spread(spread(x)), x)
    torch.testing.assert_close(spread(x) @ spread(x).T, x @ x.T)


@pytest.mark.parametrize(("size", "block"), [(64, 64), (256, 64), (80, 16), (96, 32), (20, 4), (7, 1)])
def test_one_large_element_is_shared_by_its_block(size: int, block: int) -> None:
    x = torch.zeros(size)
    x[size // 2] = 1.0
    found = spread(x)
    assert int((found != 0).sum()) == block
    torch.testing.assert_close(found[found != 0].abs(), torch.full((block,), block**-0.5))


@pytest.mark.parametrize("turned", [False, True])
def test_scores_are_those_of_heads_that_are_not_spread(turned: bool) -> None:
    heads = torch.randn(5, 8, 16, dtype=torch.float64)
    rotation = tuple(t.double() for t in angles(5, 16, 1)) if turned else None
    query, key = spread_heads(heads, 2, rotation)
    plain = rotate(heads, *rotation) if rotation else heads
    assert (query.shape, key.shape) == ((5, 4, 16), (5, 2, 16))
    want = torch.einsum("thd,shd->hts", plain[:, :2], plain[:, 4:6])
    torch.testing.assert_close(torch.einsum("thd,shd->hts", query[:, :2], key), want)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("tokens", "queries", "kv_heads", "size"), [(3, 4, 2, 16), (9, 3, 3, 20), (1, 2, 1, 128), (5, 9, 3, 96)])
def test_kernel_is_the_reference(
    interpreted: Callable[..., Any], tokens: int, queries: int, kv_heads: int, size: int, turned: bool
) -> None:
    heads = torch.randn(tokens, queries + 2 * kv_heads, size, generator=torch.Generator().manual_seed(2))
    rotation = angles(tokens, size, 3) if turned else None
    got = interpreted(spread_heads_triton, heads, queries + kv_heads, rotation)
    want = torch.cat(spread_heads(heads, kv_heads, rotation), 1)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_no_tokens() -> None:
    assert spread_heads_triton(torch.ones(0, 4, 16), 3, None).shape == (0, 3, 16)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("tokens", "queries", "kv_heads", "size"), [(48, 32, 32, 128), (1, 9, 3, 64), (700, 8, 2, 80), (5, 4, 4, 256)])
def test_gpu_is_the_reference(tokens: int, queries: int, kv_heads: int, size: int, turned: bool, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(int.from_bytes(os.urandom(3), "big"))
    # Wider than the heads are: each token's lie side by side in a row of their own.
    heads = torch.randn(tokens, queries + 2 * kv_heads + 1, size, generator=draw).to("cuda", dtype)[:, :-1]
    rotation = tuple(t.to("cuda", dtype) for t in angles(tokens, size, 3)) if turned else None
    got = spread_heads_triton(heads, queries + kv_heads, rotation)
    both = heads[:, : queries + kv_heads]
    want = spread((both if rotation is None else rotate(both, *rotation)).double())
    bound = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(got.double(), want, atol=bound, rtol=bound)
