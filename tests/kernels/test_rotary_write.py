"""Rotated queries come back, rotated keys and plain values reach their places, and nothing else is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.rotary_write import rotary_apart, rotary_write, rotary_write_triton, rotate
from inferometer.model.spec import Rotary, YarnScaling
from inferometer.nn.rotary import RotaryEmbedding, inverse_frequencies

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PLACES = [3, -1, 60, 2, 0, 9, -1, 63]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
PLAIN = Rotary(10_000.0)


def exact(heads: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """Each pair (i, i + half) turned by its angle, in float64."""
    half = heads.shape[2] // 2
    angles = (positions[:, None].float() * inverse_frequencies(rotary, heads.shape[2])).double()[:, None]
    factor = rotary.scaling.attention_factor if isinstance(rotary.scaling, YarnScaling) else 1.0
    x, y = heads[..., :half].double(), heads[..., half:].double()
    return factor * torch.cat((x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()), -1)


def check(
    write: Callable[..., Tensor],
    queries: int,
    kv_heads: int,
    head_size: int,
    *,
    places: list[int] = PLACES,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    rotary: Rotary = PLAIN,
    padded: int = 0,
    seed: int = 0,
) -> None:
    """padded: elements behind each token's heads that are not theirs."""
    tokens = len(places)
    draw = torch.Generator().manual_seed(seed)
    fused = torch.randn(tokens, (queries + 2 * kv_heads) * head_size + padded, generator=draw).to(dtype)
    heads = fused[:, : (queries + 2 * kv_heads) * head_size].unflatten(1, (-1, head_size))
    positions = torch.randint(0, 500, (tokens,), generator=draw)
    tables = RotaryEmbedding(rotary, head_size, torch.device("cpu")).tables(positions, positions + 1, dtype)
    keys, values = torch.randn(2, 64, kv_heads, head_size, generator=draw).to(dtype)
    turned = exact(heads, positions, rotary)
    want_keys, want_values = keys.double(), values.clone()
    for token, place in enumerate(places):
        if place >= 0:
            want_keys[place] = turned[token, queries : queries + kv_heads]
            want_values[place] = heads[token, queries + kv_heads :]
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[[place for place in places if place >= 0]] = False
    before = keys.clone()

    on = [tensor.to(device) for tensor in (heads, *tables, keys, values, torch.tensor(places, dtype=torch.int64))]
    query = write(*on)
    keys, values = on[3].cpu(), on[4].cpu()
    assert query.dtype == dtype
    assert query.is_contiguous()
    torch.testing.assert_close(query.cpu().double(), turned[:, :queries], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(keys.double(), want_keys, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(keys[untouched], before[untouched])
    assert torch.equal(values, want_values)


SHAPES = [(4, 4, 16), (8, 2, 64), (5, 1, 80), (2, 2, 96), (3, 1, 128), (2, 1, 256), (9, 3, 2)]


@pytest.mark.parametrize(("queries", "kv_heads", "head_size"), SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reference(queries: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
    check(rotary_write, queries, kv_heads, head_size, dtype=dtype)


@pytest.mark.parametrize(("queries", "kv_heads", "head_size"), [*SHAPES, (32, 8, 128)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernel(interpreted: Callable[..., Any], queries: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
    # The processes share the tensors' memory, so that what the other one writes is here.
    check(partial(interpreted, rotary_write_triton), queries, kv_heads, head_size, dtype=dtype)


@pytest.mark.parametrize("places", [[5, 4], [-1], []])
def test_kernel_with_padding_alone_or_no_tokens(interpreted: Callable[..., Any], places: list[int]) -> None:
    check(partial(interpreted, rotary_write_triton), 4, 2, 16, places=places)


def test_kernel_takes_rows_that_are_wider_than_the_heads(interpreted: Callable[..., Any]) -> None:
    check(partial(interpreted, rotary_write_triton), 4, 2, 16, padded=24)


def test_kernel_keeps_a_scaling_of_the_tables(interpreted: Callable[..., Any]) -> None:
    yarn = Rotary(10_000.0, YarnScaling(factor=4.0, original_positions=128, attention_factor=1.3))
    check(partial(interpreted, rotary_write_triton), 4, 2, 16, rotary=yarn)


def test_values_are_not_computed_with(interpreted: Callable[..., Any]) -> None:
    heads = torch.ones(1, 3, 16)
    heads[0, 2] = torch.inf
    keys, values = torch.zeros(2, 4, 1, 16)
    table = torch.full((1, 1, 16), 0.5)
    query = interpreted(rotary_write_triton, heads, table, table, keys, values, torch.tensor([1]))
    assert values[1].isinf().all()
    assert keys[1].eq(1).all()
    assert query.eq(1).all()


def test_kernel_rounds_where_torch_does(interpreted: Callable[..., Any]) -> None:
    dtype = torch.float16  # the interpreter cuts float32 off to bfloat16 instead of rounding it
    heads = torch.randn(6, 5, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    positions = torch.arange(6) * 31
    cos, sin = RotaryEmbedding(PLAIN, 64, torch.device("cpu")).tables(positions, positions + 1, dtype)
    keys, values = torch.zeros(2, 6, 1, 64, dtype=dtype)
    query = interpreted(rotary_write_triton, heads, cos, sin, keys, values, torch.arange(6))
    want = rotate(heads[:, :4], cos, sin)
    assert torch.equal(keys, rotate(heads[:, 3:4], cos, sin))
    assert torch.equal(query, want[:, :3])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_a_sweep_that_keeps_nothing_has_its_queries_keys_and_values_apart(device: str) -> None:
    draw = torch.Generator().manual_seed(3)
    heads = torch.randn(5, 4 + 2 * 2, 16, generator=draw).to(device)
    numbers = torch.arange(5, device=device)
    tables = RotaryEmbedding(PLAIN, 16, torch.device(device)).tables(numbers, torch.full_like(numbers, 5), heads.dtype)
    query, key, value = rotary_apart(heads, 2, *tables, numbers)
    turned = rotate(heads[:, :6], *tables)
    torch.testing.assert_close(query, turned[:, :4])
    torch.testing.assert_close(key, turned[:, 4:])
    assert torch.equal(value, heads[:, 6:])
    assert all(each.is_contiguous() for each in (query, key, value))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("queries", "kv_heads", "head_size"), [*SHAPES, (32, 8, 128), (32, 32, 128)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("places", [PLACES, [-1], []])
def test_gpu(queries: int, kv_heads: int, head_size: int, dtype: torch.dtype, places: list[int]) -> None:
    seed = int(torch.randint(2**31, ()))
    check(rotary_write, queries, kv_heads, head_size, places=places, dtype=dtype, device="cuda", seed=seed)
