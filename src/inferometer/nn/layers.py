"""The parts of a transformer layer as torch modules, each driven by the spec alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.model.spec import Activation, ModelSpec
from inferometer.nn.attention import SweepContext, attend
from inferometer.nn.linear import Linear
from inferometer.nn.rotary import rotate


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "relu_squared": _relu_squared,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": _gelu_quick,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "leaky_relu": functional.leaky_relu,
    "identity": _identity,
}


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, with trained weights or without."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = spec.norm
        self.epsilon = spec.norm_epsilon
        self.shape = (spec.hidden,)
        self.weight = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if spec.norm_affine else None
        biased = spec.norm_affine and spec.norm == "layer"
        self.bias = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        if self.kind == "rms":
            return functional.rms_norm(x, self.shape, self.weight, self.epsilon)
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


class Attention(nn.Module):
    """Self-attention with one fused projection, rows ordered all queries, all keys, all values."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_size = spec.heads, spec.kv_heads, spec.head_size
        self.scale = spec.scale(layer)
        self.qkv = Linear(spec.hidden, spec.query_size + 2 * spec.kv_size, bias=spec.qkv_bias)
        self.output = Linear(spec.query_size, spec.hidden, bias=spec.output_bias)

    def forward(self, x: Tensor, sweep: SweepContext) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden); keys and values go to the cache, if there is one."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_size)
        rotated = heads[:, : self.heads + self.kv_heads]
        if sweep.rotation is not None:
            rotated = rotate(rotated, *sweep.rotation)
        query, key = rotated[:, : self.heads], rotated[:, self.heads :]
        value = heads[:, self.heads + self.kv_heads :]
        out: Tensor = self.output(attend(query, key, value, sweep, self.layer, self.scale))
        return out


class FeedForward(nn.Module):
    """Up, activation, down; where gated, the rows of `up` are the gate's, then the value's."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gated = spec.gated
        self.activation = ACTIVATIONS[spec.activation]
        self.up = Linear(spec.hidden, spec.feed_forward * (2 if spec.gated else 1), bias=spec.feed_forward_bias)
        self.down = Linear(spec.feed_forward, spec.hidden, bias=spec.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        inner = self.up(x)
        if self.gated:
            gate, value = inner.chunk(2, -1)
            inner = self.activation(gate) * value
        else:
            inner = self.activation(inner)
        out: Tensor = self.down(inner)
        return out


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

    def forward(self, x: Tensor, sweep: SweepContext) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        if self.post:
            x = self.attention_norm(x + self.attention(x, sweep))
            out: Tensor = self.feed_forward_norm(x + self.feed_forward(x))
            return out
        normed = self.attention_norm(x)
        x = (normed if self.residual_after_norm else x) + self.attention(normed, sweep)
        normed = self.feed_forward_norm(x)
        out = (normed if self.residual_after_norm else x) + self.feed_forward(normed)
        return out
