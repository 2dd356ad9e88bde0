"""Rounds a model layer by layer to what a text asks of it: each layer sees what the rounded layers before it make of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.errors import UserError
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.gate import gate_torch
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import Activation
from inferometer.nn.attention import SweepContext, sweep_context
from inferometer.nn.batch import RaggedBatch, prompt_batch
from inferometer.nn.formats.gptq import calibrated
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import rounded
from inferometer.nn.layers import Layer, Norm
from inferometer.nn.linear import Linear
from inferometer.nn.segments import attention_kernels
from inferometer.nn.stream import Stream
from inferometer.nn.transformer import Transformer

EXPONENTS: Final = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of the inputs' size, which the columns of a map are scaled with; 0 leaves them."""
TOGETHER: Final = 4
"""Windows of the text that pass through a layer at a time."""
_LEAST_FACTOR: Final = 1e-4


class _Watched:
    """The product of a linear map as it is, which adds up the moments of what it is given."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        inputs, device = linear.weight.shape[1], linear.weight.device
        self.moments = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.sizes = torch.zeros(inputs, dtype=torch.float64, device=device)

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        wide = x.float()
        self.moments += (wide.t() @ wide).double()
        self.sizes += wide.abs().sum(0).double()
        return finish_torch(functional.linear(x, self._linear.weight, self._linear.bias), activation, residual)

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        return gate_torch(inner, activation)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What calibration makes of a layer: its matrices in few bits, and norms that take up the scaling of columns; by parameter name."""

    matrices: Mapping[str, QuantWeight]
    norms: Mapping[str, Tensor]


@torch.inference_mode()
def calibrate(
    model: Transformer, windows: Sequence[Sequence[int]], layout: QuantLayout, advance: Callable[[], None] = lambda: None
) -> Iterator[Calibrated]:
    """The layers of a plain model in their order, which it holds in their rounded form from then on.

    windows: token ids of pieces of a text. advance: told after each layer. Raises UserError where a layer's inputs are not finite.
    """
    batches = [prompt_batch(windows[i : i + TOGETHER], model.device) for i in range(0, len(windows), TOGETHER)]
    states = [model.embedding(batch) for batch in batches]
    contexts = [_context(model, batch, x) for batch, x in zip(batches, states, strict=True)]
    for index in range(len(model.layers)):
        layer = cast(Layer, model.layers[index])
        maps = {name: module for name, module in layer.named_modules() if isinstance(module, Linear)}
        watched = {name: _Watched(linear) for name, linear in maps.items()}
        for name, linear in maps.items():
            linear.product = watched[name]
        _pass(layer, [x.clone() for x in states], contexts, model.device)
        norms: dict[str, Tensor] = {}
        for name, norm in _norms_before(layer).items():
            linear, seen = maps[name], watched[name]
            factors = _column_factors(linear.weight.float(), seen, layout)
            if factors is not None:
                _fold(linear, norm, seen, factors)
                norms |= {f"layers.{index}.{key}": value for key, value in _named(layer, norm)}
        matrices = {}
        for name, linear in maps.items():
            linear.product = None
            try:
                weight = calibrated(linear.weight.float(), watched[name].moments, layout)
            except (ValueError, RuntimeError) as error:  # torch's complaint about moments that are not positive is one of the latter
                words = " ".join(str(error).split())
                raise UserError(f"--calibrate: layer {index}, {name}: {words}; use another text or --dtype float32") from None
            linear.weight.copy_(weight.dequantised())
            matrices[f"layers.{index}.{name}.weight"] = weight
        states = _pass(layer, states, contexts, model.device)
        advance()
        yield Calibrated(matrices, norms)


def _context(model: Transformer, batch: RaggedBatch, x: Tensor) -> SweepContext:
    rotation = None if model.rotary is None else model.rotary.tables(batch.positions, batch.rotary_lengths, model.dtype)
    return sweep_context(batch, model.spec, None, rotation, x)


def _pass(layer: Layer, states: list[Tensor], contexts: list[SweepContext], device: torch.device) -> list[Tensor]:
    with attention_kernels(device):
        return [layer(Stream(x), context).whole for x, context in zip(states, contexts, strict=True)]


def _norms_before(layer: Layer) -> dict[str, Norm]:
    """The maps whose columns a norm before them can scale, as nothing else reads it."""
    read = {"attention.qkv": layer.attention_norm, "feed_forward.up": layer.feed_forward_norm}
    found = {"attention.qkv": layer.attention.qkv, "feed_forward.up": layer.feed_forward.up}
    return {name: norm for name, norm in read.items() if found[name] in layer.normed_maps and norm.weight is not None}


def _named(layer: Layer, norm: Norm) -> Iterator[tuple[str, Tensor]]:
    for name, module in layer.named_modules():
        if module is norm:
            yield from ((f"{name}.{key}", value.detach().clone()) for key, value in norm.named_parameters())


def _column_factors(matrix: Tensor, seen: _Watched, layout: QuantLayout) -> Tensor | None:
    """What to scale columns with before they are rounded, so that inputs of large size lose less (Lin et al., AWQ, 2023,
    arXiv:2306.00978); None where that does not help.
    """
    size = seen.sizes.float()
    size = (size / size.mean().clamp(min=torch.finfo(torch.float32).tiny)).clamp(min=_LEAST_FACTOR)
    best, chosen = None, 0.0
    for exponent in EXPONENTS:
        factors = size**exponent
        lost = rounded(matrix * factors, layout).dequantised() / factors - matrix
        loss = float(((lost @ seen.moments.float()) * lost).sum())
        if best is None or loss < best:
            best, chosen = loss, exponent
    return size**chosen if chosen else None


def _fold(linear: Linear, norm: Norm, seen: _Watched, factors: Tensor) -> None:
    """Scales the columns, and the norm the other way."""
    linear.weight.copy_(linear.weight.float() * factors)
    for part in (norm.weight, norm.bias):
        if part is not None:
            part.copy_(part.float() / factors)
    seen.moments /= factors.double()[:, None] * factors.double()
