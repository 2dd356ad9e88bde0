"""Matrices rounded to what inputs ask of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from inferometer.errors import UserError
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.nn.batch import prompt_batch
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.calibration import calibrate
from inferometer.nn.formats.gptq import calibrated
from inferometer.nn.formats.layout import QuantLayout, layer_matrices
from inferometer.nn.formats.rounding import rounded
from inferometer.nn.load import load
from inferometer.nn.transformer import Transformer
from tiny_models import CONFIGS, tiny_model

CPU = torch.device("cpu")
DECODERS = [kind for kind in CONFIGS if kind != "bert"]


def correlated(rows: int, inputs: int, seed: int) -> Tensor:
    """Inputs whose power differs by column, and of which few dimensions hold most."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, inputs // 4, generator=generator) @ torch.randn(inputs // 4, inputs, generator=generator)
    return (mixed + 0.3 * torch.randn(rows, inputs, generator=generator)) * torch.rand(inputs, generator=generator).square() * 3


@pytest.mark.parametrize("name", ["int4-g32", "int4-g64-sym", "int8", "fp8"])
@pytest.mark.parametrize("inputs", [96, 200])
def test_products_change_less_than_with_the_nearest(name: str, inputs: int) -> None:
    layout = QuantLayout.of(weight_format(name, "float32"), CPU)
    x = correlated(400, inputs, 1)
    matrix = torch.randn(24, inputs, generator=torch.Generator().manual_seed(2)) * 0.05
    seen = x[:300].double()
    weight = calibrated(matrix, seen.T @ seen, layout)
    assert (weight.kind, weight.group, weight.shape) == (layout.kind, layout.group, (24, inputs))

    def error(found: Tensor) -> float:
        return float(((x[300:] @ (found - matrix).T) ** 2).mean())

    assert error(weight.dequantised()) < 0.8 * error(rounded(matrix, layout).dequantised())


def test_inputs_that_are_never_there_do_no_harm() -> None:
    layout = QuantLayout.of(weight_format("int4-g32", "float32"), CPU)
    matrix, x = torch.randn(8, 64), torch.randn(50, 64)
    x[:, ::2] = 0
    weight = calibrated(matrix, x.double().T @ x.double(), layout)
    assert weight.dequantised().isfinite().all()
    zeros = calibrated(matrix, torch.zeros(64, 64, dtype=torch.float64), layout)
    assert (zeros.dequantised() - matrix).abs().max() < 1.0
    with pytest.raises(ValueError, match="not finite"):
        calibrated(matrix, torch.full((64, 64), torch.nan, dtype=torch.float64), layout)


def plain_model(folder: Path) -> Transformer:
    spec = describe(str(folder), config_only=True).spec
    model = Transformer(spec, CPU, torch.float32)
    load(model, DummySource(spec, family(spec.family), seed=1), family(spec.family))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # so that columns differ in size
            parameter.copy_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(5)).square() * 4 + 0.05)
        elif name in layer_matrices(spec):
            parameter.mul_(8)
    return model


@pytest.mark.parametrize("kind", DECODERS)
def test_every_family_comes_closer_than_with_the_nearest(tmp_path: Path, kind: str) -> None:
    folder = tiny_model(tmp_path, kind)
    original, changed = plain_model(folder), plain_model(folder)
    generator = torch.Generator().manual_seed(3)
    windows = [torch.randint(300, (40,), generator=generator).tolist() for _ in range(9)]
    layout = QuantLayout.of(weight_format("int4-g32", "float32"), CPU)
    layers = []
    for layer in calibrate(changed, windows, layout, lambda: layers.append(None)):
        assert all(name in layer_matrices(changed.spec) for name in layer.matrices)
        for name, weight in layer.matrices.items():
            assert torch.equal(changed.get_parameter(name), weight.dequantised())
        for name, value in layer.norms.items():
            assert torch.equal(changed.get_parameter(name), value)
    assert len(layers) == changed.spec.layers
    nearest = plain_model(folder)
    for name in layer_matrices(nearest.spec):
        nearest.get_parameter(name).copy_(rounded(original.get_parameter(name), layout).dequantised())
    batch = prompt_batch([torch.randint(300, (60,), generator=generator).tolist()], CPU)
    with torch.inference_mode():
        wanted = original(batch, logits="all")
        ours, theirs = (float((model(batch, logits="all") - wanted).square().mean()) for model in (changed, nearest))
    assert ours < theirs


def test_a_model_that_overflows_is_told(tmp_path: Path) -> None:
    model = plain_model(tiny_model(tmp_path, "llama"))
    model.get_parameter("layers.1.attention.qkv.weight").fill_(torch.nan)
    with pytest.raises(UserError, match=r"layer 1") as caught:
        list(calibrate(model, [[1, 2, 3, 4]], QuantLayout.of(weight_format("int4", "float32"), CPU)))
    assert "\n" not in str(caught.value)
