"""Parts of a result that programs hand over through memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.handover import hand_where, handover, take
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import constexpr, kernel, tl

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BITS = [0x00000000, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x00000001, 0xFFFFFFFE, 0xFFFFFFFF]
"""Numbers of all kinds: zeros, one, infinities, what is no number, the last of which is what absence looks like."""


@kernel()
def _pass_on(x: Any, out: Any, room: Any, width: constexpr, parts: constexpr) -> None:
    """Row i of x, by way of the room, into row i of out: all rows by the program of the last."""
    part = tl.program_id(0)
    i = tl.arange(0, width)
    own = tl.load(x + part * width + i)
    if part < parts - 1:
        hand_where(room + part * width + i, own, i < width)
    else:
        every = tl.arange(0, parts)[:, None]
        at = every * width + i[None, :]
        found = take(room + at, (every < parts - 1) & (i < width)[None, :])
        tl.store(out + at, found)
        tl.store(out + part * width + i, own)


def passed_on(x: Tensor) -> tuple[Tensor, Tensor]:
    """What arrives, and the room afterwards."""
    out, (parts, width) = torch.zeros_like(x), x.shape
    for _ in range(3):
        _pass_on.launch((parts,), x, out, handover(x.device), width=width, parts=parts)
    return out, handover(x.device)


def drawn(parts: int, width: int) -> Tensor:
    """Any bits at all, and of each kind of number some."""
    bits = torch.randint(-(2**31), 2**31, (parts, width), dtype=torch.int64)
    bits[:, : len(BITS)] = torch.tensor(BITS)
    return bits.to(torch.int32).view(torch.float32)


def check(x: Tensor, out: Tensor, room: Tensor) -> None:
    assert bool((room == -1).all())
    torch.testing.assert_close(out, x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("parts", [2, 8])
def test_numbers_of_every_kind_arrive(interpreted: Callable[..., Any], parts: int) -> None:
    x = drawn(parts, 16)
    check(x, *interpreted(passed_on, x))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("parts", [2, 16, 128])
def test_gpu_numbers_of_every_kind_arrive(parts: int) -> None:
    x = drawn(parts, 32).cuda()
    check(x, *passed_on(x))


@pytest.mark.gpu
@needs_gpu
def test_gpu_launches_in_a_row_share_the_room() -> None:
    """Each begins before the one ahead has ended, and hands over through the same places: thousands of times the same bits."""
    width, launch = 1024, Tiling(64, 128, 4, 4, programs=2, early=True)
    assert launch.parts(width, width, 132) > 1
    weight = (torch.randn(width, width, device="cuda") / width**0.5).bfloat16()
    start = torch.randn(8, width, device="cuda").bfloat16()

    def chain() -> Tensor:
        x = start
        for _ in range(50):
            x = skinny_triton(x, weight, residual=start, launch=launch)
        return x

    want = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain()
    for _ in range(40):
        got.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, want)
    assert bool((handover(start.device) == -1).all())
