"""Weights in the CPU's own layout: the same product, no second copy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inferometer.nn.linear import Linear
from inferometer.nn.packed import Packed

packs = pytest.mark.skipif(not Packed.possible(torch.empty(1, 1, dtype=torch.bfloat16)), reason="oneDNN does not pack bfloat16 here")


@packs
@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (576, 1536), (33, 7)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_packed_product_is_the_plain_one(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    linear = Linear(inputs, outputs, bias=bias).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(rows)
    for parameter in linear.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(rows, inputs, generator=generator).bfloat16()
    exact = functional.linear(x.float(), linear.weight.float(), None if linear.bias is None else linear.bias.float())
    linear.pack()
    assert linear.packed is not None
    torch.testing.assert_close(linear(x).float(), exact, rtol=2**-7, atol=2**-6 * float(exact.abs().max()))


@packs
def test_packing_keeps_the_shape_and_frees_the_plain_weight() -> None:
    linear = Linear(64, 32, bias=False).to(torch.bfloat16)
    linear.pack()
    assert linear.weight.shape == (32, 64)
    assert linear.weight.is_meta


def test_float32_stays_plain() -> None:
    linear = Linear(64, 32, bias=False)
    linear.pack()
    assert linear.packed is None
    assert not linear.weight.is_meta


def test_where_the_processor_cannot_the_weight_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN has no bfloat16 for processors without AVX-512, and raises only when it is to pack."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    linear = Linear(64, 32, bias=False).to(torch.bfloat16)
    linear.weight.fill_(0.5)  # a weight is made without contents, which may be no numbers
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    linear.pack()
    assert linear.packed is None
    assert torch.equal(linear(x), functional.linear(x, linear.weight))
