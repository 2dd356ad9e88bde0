"""Queries of one token a sequence, what they come to in float64, and what a launch leaves in the pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import paged_decode as decode
from inferometer.kernels.arrivals import arrivals
from inferometer.model.spec import Rotary
from inferometer.nn.rotary import RotaryEmbedding

# Around the page (16) and the keys of an iteration (16 to 128), padding in the middle.
CONTEXTS = [1, 15, 16, 17, 0, 33, 128, 150]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def query_of(rows: int, heads: int, head_size: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """(rows, heads, head_size)."""
    return torch.randn(rows, heads, head_size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(batch: Any, query: Tensor, scale: float, slopes: Tensor | None = None) -> Tensor:
    """What queries (rows, heads, head_size) come to, float64, zeros in padding rows."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for row, key in enumerate(batch.key):
        if len(key):
            out[row] = batch.exact(query[row : row + 1], row, scale, slopes)[0]
    return out


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


SHAPES = [
    pytest.param(4, 4, 64, torch.float16, False, id="alone"),
    pytest.param(3, 3, 16, torch.float32, True, id="small-heads-alibi"),
    pytest.param(2, 2, 80, torch.float16, True, id="padded-head-alibi"),
    pytest.param(2, 2, 256, torch.float32, False, id="wide-head"),
    pytest.param(8, 2, 128, torch.float16, False, id="grouped"),
    pytest.param(6, 2, 96, torch.float32, True, id="grouped-padded-alibi"),
    pytest.param(20, 1, 64, torch.float32, False, id="one-key-head"),
    pytest.param(4, 2, 32, torch.bfloat16, False, id="bfloat16"),
]


def emptied(batch: Any) -> tuple[Tensor, Tensor]:
    """The newest key and value of every row (zeros for padding), which the pages lose."""
    newest = []
    for held, each in ((batch.keys, batch.key), (batch.values, batch.value)):
        rows = torch.zeros(len(each), *held.shape[1:], dtype=held.dtype)
        for row, (seat, tokens) in enumerate(zip(batch.seats.tolist(), each, strict=True)):
            if len(tokens):
                page, offset = divmod(len(tokens) - 1, batch.page_size)
                held[batch.table[seat, page] * batch.page_size + offset] = torch.nan
                rows[row] = tokens[-1]
        newest.append(rows.to(held.device))
    return newest[0], newest[1]


def angles(rows: int, head_size: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """cos and sin (rows, ...) of positions in no order, at most eight."""
    positions = torch.tensor([3, 0, 900, 17, 5, 31, 128, 7][:rows])
    cos, sin = RotaryEmbedding(Rotary(10_000.0), head_size, torch.device("cpu")).tables(positions, positions + 1, dtype)
    return cos.to(device), sin.to(device)


def written(far: int, query: Tensor, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What a call returns, and the pages as it leaves them: arguments of another process are copies. far: programs that fetch ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "AHEAD", far)
        out = decode.paged_decode_triton(query, keys, values, *rest, **named)
    assert not arrivals(query.device).any()
    return out, keys, values
