"""LayerNorm and RMSNorm, with the addition to the residual stream that comes before them in the same launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable
from inferometer.model.spec import NormKind

WIDEST = 16384
"""The widest row that a program holds in its registers: 16 elements of each of 1024 threads."""
ELEMENTS = 8
"""Of a row, for each thread: one load of 16 bytes."""


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm over the last dimension. weight, bias: (hidden,) or None."""

    kind: NormKind
    epsilon: float
    weight: Tensor | None
    bias: Tensor | None

    def of(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
        """See `norm`; x, delta: (tokens, hidden)."""
        return norm(x, delta, kind=self.kind, epsilon=self.epsilon, weight=self.weight, bias=self.bias)


def norm(
    x: Tensor, delta: Tensor | None = None, *, kind: NormKind, epsilon: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The norm over the last dimension of x, or of x + delta: x becomes that sum, rounded to its type, before it is normed.

    x, delta: (tokens, hidden), contiguous. weight, bias: (hidden,) or None. All of one type; computed in float32, rounded once.
    Returns (tokens, hidden). That may lie where delta was: nobody reads a summand twice, and no memory is taken.

    Moves 2 * tokens * hidden elements: x read, the result written; twice as many with delta, which is read, and the sum, written.
    """
    if usable(x.device) and x.shape[1] <= WIDEST:
        return norm_triton(x, delta, kind=kind, epsilon=epsilon, weight=weight, bias=bias)
    return norm_torch(x, delta, kind=kind, epsilon=epsilon, weight=weight, bias=bias)


def norm_torch(
    x: Tensor, delta: Tensor | None = None, *, kind: NormKind, epsilon: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The reference."""
    if delta is not None:
        x += delta
    if kind == "rms":
        return functional.rms_norm(x, x.shape[1:], weight, epsilon)
    return functional.layer_norm(x, x.shape[1:], weight, bias, epsilon)


def norm_triton(
    x: Tensor, delta: Tensor | None = None, *, kind: NormKind, epsilon: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The kernel. Raises ValueError for rows wider than WIDEST."""
    tokens, hidden = x.shape
    if hidden > WIDEST:
        raise ValueError(f"a row of {hidden} is wider than {WIDEST}")
    out = torch.empty_like(x) if delta is None else delta
    if tokens == 0:
        return out
    assert x.is_contiguous()
    assert delta is None or (delta.is_contiguous() and delta.shape == x.shape)
    width = power_of_two(hidden)
    _norm.launch(
        (tokens,), x, x if delta is None else delta, x if weight is None else weight, x if bias is None else bias, out, epsilon,
        hidden=hidden, width=width, centred=kind == "layer", added=delta is not None, weighted=weight is not None,
        biased=bias is not None, num_warps=min(32, max(1, width // (32 * ELEMENTS))), **early(x.device),
    )  # fmt: skip
    return out


@kernel()
def standardised(value: Any, real: Any, size: constexpr, epsilon: Any, centred: constexpr) -> Any:
    """A row of float32 whose `size` elements are real and whose others are 0, over its root mean square; centred before, if asked."""
    if centred:
        value = tl.where(real, value - tl.sum(value, 0) / size, 0.0)
    return value * tl.rsqrt(tl.sum(value * value, 0) / size + epsilon)


@kernel()
def part_of_row(
    x: Any, k: Any, real: Any, there: Any, factor: Any, shift: Any, epsilon: Any, inputs: Any, width: constexpr, normed: constexpr,
) -> Any:  # fmt: skip
    """Elements k of a row, 0 where they are not real; normed over the whole row if asked, and rounded as the norm's own launch would."""
    value = tl.load(x + k, mask=real, other=0)
    if normed is not None:
        i = tl.arange(0, width)
        whole = tl.load(x + i, mask=there & (i < inputs), other=0).to(tl.float32)
        wide = value.to(tl.float32)
        if normed == "layer":
            mean = tl.sum(whole, 0) / inputs
            whole = tl.where(i < inputs, whole - mean, 0.0)
            wide = wide - mean
        wide = wide * tl.rsqrt(tl.sum(whole * whole, 0) / inputs + epsilon)
        value = tl.where(real, wide * factor + shift, 0.0).to(value.dtype)
    return value


@kernel()
def _norm(
    x: Any, delta: Any, weight: Any, bias: Any, out: Any, epsilon: Any, hidden: constexpr, width: constexpr, centred: constexpr,
    added: constexpr, weighted: constexpr, biased: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.arange(0, width)
    real = i < hidden
    # The launch ahead writes no weights: they are on their way while it ends.
    if weighted:
        factor = tl.load(weight + i, mask=real, other=0).to(tl.float32)
    if biased:
        shift = tl.load(bias + i, mask=real, other=0).to(tl.float32)
    if early:
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * hidden + i
    value = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if added:
        step = tl.load(delta + at, mask=real, other=0).to(tl.float32)
        total = (value + step).to(x.dtype.element_ty)
        tl.store(x + at, total, mask=real)
        value = total.to(tl.float32)
    value = standardised(value, real, hidden, epsilon, centred)
    if weighted:
        value = value * factor
    if biased:
        value = value + shift
    tl.store(out + at, value, mask=real)
