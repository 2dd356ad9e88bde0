"""Attention of one token a sequence that writes the newest keys and values itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import paged_decode as decode
from inferometer.kernels.decode_launch import Cut
from inferometer.kernels.support import Tiles
from inferometer.nn.alibi import slopes as alibi
from paged_queries import SHAPES, TOLERANCE, angles, close, emptied, exact, query_of, written

NEWEST = [1, 16, 17, 0, 128, 150]  # whose last key ends a page or a block, begins one, or lies within


def interleaved(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one tensor, a row's heads side by side, as the fused projection gives them."""
    heads = torch.cat((query, key, value), 1)
    q, k, v = torch.split(heads, [query.shape[1], key.shape[1], value.shape[1]], 1)
    return q, k, v


@pytest.mark.parametrize(("parts", "far"), [(1, 0), (4, 0), (4, 1000)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_kernel_writes_the_newest_keys_itself(
    pages: Any,
    interpreted: Callable[..., Any],
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    biased: bool,
    parts: int,
    turned: bool,
    far: int,
) -> None:
    """The same result, and the same pages, as if they had been written before."""
    batch = pages.fill(NEWEST, kv_heads, head_size, dtype=dtype)
    query, key, value = interleaved(query_of(len(NEWEST), heads, head_size, dtype), *emptied(batch))
    rotation = angles(len(NEWEST), head_size, dtype) if turned else None
    named = {"page_size": 16, "scale": 0.1, "slopes": torch.tensor(alibi(heads)) if biased else None}
    rest = batch.table, batch.seats, batch.contexts
    keys, values = batch.keys.clone(), batch.values.clone()
    fresh = decode.Fresh(key, value, rotation)
    want = decode.paged_decode_torch(query, keys, values, *rest, **named, fresh=fresh)
    if not turned:
        close(want, exact(batch, query, 0.1, named["slopes"]), dtype)
    tiles, cutting = Tiles(block=32, warps=4, stages=1, queries=16), Cut(parts, least=16)
    got, new_keys, new_values = interpreted(
        written, far, query, batch.keys, batch.values, *rest, longest=150, **named, fresh=fresh, tiling=tiles, cutting=cutting
    )
    close(got, want.double(), dtype)
    torch.testing.assert_close(new_keys, keys, equal_nan=True, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(new_values.nan_to_num(9), values.nan_to_num(9))
