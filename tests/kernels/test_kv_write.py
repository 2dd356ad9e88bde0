"""Keys and values reach their places, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from inferometer.kernels.kv_write import kv_write, kv_write_torch, kv_write_triton

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PLACES = [3, -1, 60, 2, 0, 9, -1, 63]


def check(
    write: Callable[..., Any],
    kv_heads: int,
    head_size: int,
    *,
    view: str,
    places: list[int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> None:
    tokens = len(places)
    draw = torch.Generator().manual_seed(tokens)
    if view == "interleaved":  # every head's query, key and value side by side, as BLOOM's projection gives them
        fused = torch.randn(tokens, kv_heads, 3, head_size, generator=draw).to(device, dtype)
        key, value = fused[:, :, 1], fused[:, :, 2]
    elif view == "fused":
        fused = torch.randn(tokens, 4 + 2 * kv_heads, head_size, generator=draw).to(device, dtype)
        key, value = fused[:, 4 : 4 + kv_heads], fused[:, 4 + kv_heads :]
    else:
        key, value = torch.randn(2, tokens, kv_heads, head_size, generator=draw).to(device, dtype)
    keys, values = torch.randn(2, 64, kv_heads, head_size, generator=draw).to(device, dtype)
    want = keys.clone(), values.clone()
    for token, place in enumerate(places):
        if place >= 0:
            want[0][place], want[1][place] = key[token], value[token]
    write(key, value, keys, values, torch.tensor(places, dtype=torch.int64, device=device))
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])


@pytest.mark.parametrize("view", ["plain", "fused", "interleaved"])
@pytest.mark.parametrize("places", [PLACES, [5, 4], [-1], []])
def test_reference(view: str, places: list[int]) -> None:
    check(kv_write, 3, 16, view=view, places=places)


@pytest.mark.parametrize("view", ["plain", "fused", "interleaved"])
@pytest.mark.parametrize(("kv_heads", "head_size"), [(1, 64), (3, 80), (20, 128), (2, 256)])
def test_kernel(interpreted: Callable[..., Any], view: str, kv_heads: int, head_size: int) -> None:
    # The processes share the tensors' memory, so that what the other one writes is here.
    write = partial(interpreted, kv_write_triton)
    check(write, kv_heads, head_size, view=view, places=PLACES, dtype=torch.float16)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("view", ["plain", "fused", "interleaved"])
@pytest.mark.parametrize(("kv_heads", "head_size"), [(1, 64), (3, 80), (32, 128), (2, 256), (1, 16)])
@pytest.mark.parametrize("places", [PLACES, [-1], []])
def test_gpu(view: str, kv_heads: int, head_size: int, dtype: torch.dtype, places: list[int]) -> None:
    check(kv_write, kv_heads, head_size, view=view, places=places, dtype=dtype, device="cuda")


def test_a_pool_of_another_type_is_converted_to() -> None:
    keys, values = torch.zeros(2, 4, 1, 16, dtype=torch.float16)
    kv_write_torch(torch.ones(1, 1, 16), torch.ones(1, 1, 16), keys, values, torch.tensor([2]))
    assert keys[2].eq(1).all()
    assert keys.sum() == 16
