"""The parts of a transformer layer as torch modules, each driven by the spec alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inferometer.kernels.gate import gate
from inferometer.kernels.norm import norm
from inferometer.kernels.support import usable
from inferometer.model.spec import ModelSpec
from inferometer.nn.attention import SweepContext, attend
from inferometer.nn.linear import Linear


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, with trained weights or without."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = spec.norm
        self.epsilon = spec.norm_epsilon
        self.weight = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if spec.norm_affine else None
        biased = spec.norm_affine and spec.norm == "layer"
        self.bias = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if biased else None

    def forward(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
        """The norm of x, or of x + delta, which x then becomes and delta makes room for; all (tokens, hidden)."""
        return norm(x, delta, kind=self.kind, epsilon=self.epsilon, weight=self.weight, bias=self.bias)


class Attention(nn.Module):
    """Self-attention with one fused projection, rows ordered all queries, all keys, all values."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.kv_heads, self.head_size = spec.kv_heads, spec.head_size
        self.scale = spec.scale(layer)
        self.qkv = Linear(spec.hidden, spec.query_size + 2 * spec.kv_size, bias=spec.qkv_bias)
        self.output = Linear(spec.query_size, spec.hidden, bias=spec.output_bias)

    def forward(self, x: Tensor, residual: Tensor, sweep: SweepContext) -> tuple[Tensor, Tensor | None]:
        """residual + attention of x, both (tokens, hidden), as `add` gives it; keys and values go to the cache, if there is one."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_size)
        return add(residual, self.output, attend(heads, self.kv_heads, sweep, self.layer, self.scale))


class FeedForward(nn.Module):
    """Up, activation, down; where gated, the rows of `up` are the gate's, then the value's."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gated = spec.gated
        self.activation = spec.activation
        self.up = Linear(spec.hidden, spec.feed_forward * (2 if spec.gated else 1), bias=spec.feed_forward_bias)
        self.down = Linear(spec.feed_forward, spec.hidden, bias=spec.feed_forward_bias)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        """residual + feed-forward of x, both (tokens, hidden), as `add` gives it."""
        if self.gated:
            gating = gate if self.up.product is None else self.up.product.gate
            inner = gating(self.up(x), self.activation)
        else:
            inner = self.up(x, activation=self.activation)
        return add(residual, self.down, inner)


class Layer(nn.Module):
    """Attention and feed-forward with their residuals, the norm before each or after it."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.post = spec.norm_placement == "post"
        self.residual_after_norm = spec.residual_after_norm
        self.attention_norm = Norm(spec)
        self.attention = Attention(spec, layer)
        self.feed_forward_norm = Norm(spec)
        self.feed_forward = FeedForward(spec)

    def forward(self, x: Tensor, delta: Tensor | None, sweep: SweepContext) -> tuple[Tensor, Tensor | None]:
        """The layer's input and output, (tokens, hidden), are x + delta, or x alone: the norm that comes next takes the sum.

        The input x is written to.
        """
        if self.post:
            x, delta = carried(*self.attention(x, x, sweep))
            x = self.attention_norm(x, delta)
            x, delta = carried(*self.feed_forward(x, x))
            return self.feed_forward_norm(x, delta), None
        normed = self.attention_norm(x, delta)
        x, delta = carried(*self.attention(normed, normed if self.residual_after_norm else x, sweep))
        normed = self.feed_forward_norm(x, delta)
        return carried(*self.feed_forward(normed, normed if self.residual_after_norm else x))


def add(residual: Tensor, linear: Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """residual + linear(x): the sum and None where the linear map adds it in its own launch, else both parts."""
    if linear.takes_residual(x):
        return linear(x, residual=residual), None
    return residual, linear(x)


def carried(x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x + delta, left in two parts where the norm that follows adds them in its own launch."""
    return (x, delta) if delta is None or usable(x.device) else (x + delta, None)
