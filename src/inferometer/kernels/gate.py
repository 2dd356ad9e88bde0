"""Gated feed-forward layers: the activation of one half of the up projection, times the other half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.activation import ACTIVATIONS, activate
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs
from inferometer.model.spec import Activation

ELEMENTS = 1024
"""Of the result, for each program: 8 for each of 128 threads, two loads of 16 bytes."""


def gate(inner: Tensor, activation: Activation) -> Tensor:
    """activation(inner[:, :width]) * inner[:, width:], in one launch; both steps are rounded to the type of `inner`.

    inner: (tokens, 2 * width), contiguous. Returns (tokens, width).
    Moves 3 * tokens * width elements: both halves read, the result written.
    """
    if usable(inner.device):
        return gate_triton(inner, activation)
    return gate_torch(inner, activation)


def gate_torch(inner: Tensor, activation: Activation) -> Tensor:
    """The reference."""
    gating, value = inner.chunk(2, -1)
    return ACTIVATIONS[activation](gating) * value


def gate_triton(inner: Tensor, activation: Activation) -> Tensor:
    """The kernel."""
    tokens, width = inner.shape[0], inner.shape[1] // 2
    out = torch.empty((tokens, width), dtype=inner.dtype, device=inner.device)
    if tokens == 0:
        return out
    assert inner.is_contiguous()
    block = min(ELEMENTS, power_of_two(width))
    grid = (tokens, -(-width // block))
    _gate.launch(grid, inner, out, width=width, block=block, activation=activation, num_warps=4, **early(inner.device))
    return out


@kernel()
def _gate(inner: Any, out: Any, width: constexpr, block: constexpr, activation: constexpr, early: constexpr) -> None:
    wait_for_inputs(early)
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    real = i < width
    source = inner + token * (2 * width) + i
    gating = tl.load(source, mask=real, other=0).to(tl.float32)
    value = tl.load(source + width, mask=real, other=0).to(tl.float32)
    dtype = out.dtype.element_ty
    gating = activate(gating, activation, dtype).to(dtype).to(tl.float32)
    tl.store(out + token * width + i, gating * value, mask=real)
