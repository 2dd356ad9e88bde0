"""The parts of a transformer layer as torch modules, each driven by the spec alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inferometer.kernels.gate import gate
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.norm import NormWeights
from inferometer.model.spec import Activation, ModelSpec
from inferometer.nn.attention import SweepContext, attend, attend_in_parts
from inferometer.nn.collective import Collective
from inferometer.nn.linear import Linear
from inferometer.nn.stream import Stream


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, with trained weights or without."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = spec.norm
        self.epsilon = spec.norm_epsilon
        self.weight = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if spec.norm_affine else None
        biased = spec.norm_affine and spec.norm == "layer"
        self.bias = nn.Parameter(torch.empty(spec.hidden), requires_grad=False) if biased else None

    @property
    def weights(self) -> NormWeights:
        """As launches of other modules take them."""
        return NormWeights(self.kind, self.epsilon, self.weight, self.bias)

    def forward(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
        """The norm of x, or of x + delta, which x then becomes and delta makes room for; all (tokens, hidden)."""
        return self.weights.of(x, delta)


class Attention(nn.Module):
    """Self-attention with one fused projection, rows ordered all queries, all keys, all values."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.kv_heads, self.head_size = spec.kv_heads, spec.head_size
        self.scale = spec.scale(layer)
        self.qkv = Linear(spec.hidden, spec.query_size + 2 * spec.kv_size, bias=spec.qkv_bias)
        self.output = Linear(spec.query_size, spec.hidden, bias=spec.output_bias)

    def forward(self, stream: Stream, norm: Norm | None, sweep: SweepContext) -> Tensor | HeadParts:
        """Attention of the normed stream, before the output projection: (tokens, queries * head_size), or in parts where that joins them.

        Keys and values go to the cache, if there is one.
        """
        rows = normed(stream, norm, self.qkv)
        heads = rows.view(rows.shape[0], -1, self.head_size)
        if sweep.collective.size == 1 and self.output.joins(rows):
            parts = attend_in_parts(heads, self.kv_heads, sweep, self.layer, self.scale)
            if parts is not None:
                return parts
        return attend(heads, self.kv_heads, sweep, self.layer, self.scale)


class FeedForward(nn.Module):
    """Up, activation, down; where gated, the rows of `up` are the gate's, then the value's."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gated = spec.gated
        self.activation = spec.activation
        self.up = Linear(spec.hidden, spec.feed_forward * (2 if spec.gated else 1), bias=spec.feed_forward_bias)
        self.down = Linear(spec.feed_forward, spec.hidden, bias=spec.feed_forward_bias)

    def forward(self, stream: Stream, norm: Norm | None) -> Tensor:
        """The inner states of the normed stream, before the projection down: (tokens, feed_forward)."""
        if self.gated:
            gating = gate if self.up.product is None else self.up.product.gate
            return gating(normed(stream, norm, self.up), self.activation)
        return normed(stream, norm, self.up, activation=self.activation)


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

    @property
    def normed_maps(self) -> tuple[Linear, ...]:
        """The maps that read nothing but a norm, which nothing else reads: their launches may norm by themselves."""
        return () if self.post or self.residual_after_norm else (self.attention.qkv, self.feed_forward.up)

    def forward(self, stream: Stream, sweep: SweepContext) -> Stream:
        """The layer's input and output, (tokens, hidden), as streams; the input is written to."""
        ranks = sweep.collective
        if self.post:
            stream = add(stream.x, self.attention.output, self.attention(stream, None, sweep), ranks).carried
            stream = Stream(stream.normed(self.attention_norm.weights))
            stream = add(stream.x, self.feed_forward.down, self.feed_forward(stream, None), ranks).carried
            return Stream(stream.normed(self.feed_forward_norm.weights))
        if self.residual_after_norm:
            stream = Stream(stream.normed(self.attention_norm.weights))
            stream = add(stream.x, self.attention.output, self.attention(stream, None, sweep), ranks).carried
            stream = Stream(stream.normed(self.feed_forward_norm.weights))
            return add(stream.x, self.feed_forward.down, self.feed_forward(stream, None), ranks).carried
        stream = add(stream.x, self.attention.output, self.attention(stream, self.attention_norm, sweep), ranks).carried
        return add(stream.x, self.feed_forward.down, self.feed_forward(stream, self.feed_forward_norm), ranks).carried


def normed(stream: Stream, norm: Norm | None, linear: Linear, *, activation: Activation | None = None) -> Tensor:
    """activation(linear(norm(stream))), in one launch where that serves. stream.x is the whole sum from then on."""
    if norm is None:
        return linear.forward(stream.x, activation=activation)
    if linear.norms(stream.x):
        stream = stream.summed
    if stream.delta is None:
        out = linear.normed(stream.x, norm.weights, activation=activation)
        if out is not None:
            return out
    return linear.forward(stream.normed(norm.weights), activation=activation)


def add(residual: Tensor, linear: Linear, x: Tensor | HeadParts, ranks: Collective) -> Stream:
    """residual + linear(x): their sum where the linear map adds in its own launch, else both parts.

    Of a map that is cut over ranks each has a part of the sum, which the residual is added to once they have all been added up.
    """
    if isinstance(x, HeadParts):
        return Stream(linear.joined(x, residual))
    if ranks.size == 1 and linear.takes_residual(x):
        return Stream(linear(x, residual=residual))
    return Stream(residual, linear(x)) if ranks.size == 1 else Stream(residual, x, ranks, linear)
