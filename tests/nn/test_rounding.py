"""Matrices in few bits against the definitions, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.formats import ROUNDED_FORMATS, weight_format
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.product import multiply
from inferometer.nn.formats.rounding import round_into

CPU = torch.device("cpu")
formats = pytest.mark.parametrize("name", ROUNDED_FORMATS)


def rounded(name: str, matrix: Tensor) -> QuantWeight:
    weight = QuantLayout.of(weight_format(name, "float32"), CPU).empty(*matrix.shape, CPU)
    round_into(weight, matrix)
    return weight


def by_hand(weight: QuantWeight) -> Tensor:
    """float64 (outputs, inputs), number by number."""
    out = [[0.0] * weight.inputs for _ in range(weight.outputs)]
    data, scale = weight.data.float().tolist(), weight.scale.double().tolist()
    zeros = None if weight.zero is None else weight.zero.double().tolist()
    order = range(weight.inputs) if weight.order is None else weight.order.tolist()
    for row in range(weight.outputs):
        for k in range(weight.inputs):
            if weight.group is None:
                out[row][k] = data[row][k] * scale[row]
                continue
            nibble = int(data[row][k // 2]) >> 4 * (k % 2) & 15
            zero = 8.0 if zeros is None else zeros[row][k // weight.group]
            out[row][order[k]] = (nibble - zero) * scale[row][k // weight.group]
    return torch.tensor(out, dtype=torch.float64)


@formats
@settings(max_examples=8, deadline=None)
@given(outputs=st.integers(1, 9), inputs=st.integers(1, 200), seed=st.integers(0, 2**32), spread=st.sampled_from([1e-3, 0.02, 7.0]))
def test_no_number_is_further_off_than_half_a_step(name: str, outputs: int, inputs: int, seed: int, spread: float) -> None:
    matrix = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * spread
    weight = rounded(name, matrix)
    assert weight.nbytes == weight_format(name, "float32").matrix_bytes(outputs, inputs)
    found = by_hand(weight)
    torch.testing.assert_close(weight.dequantised(torch.float64), found, rtol=0, atol=0)
    error = (found - matrix.double()).abs()
    if name == "fp8":
        assert (error <= matrix.abs() / 16 + matrix.abs().amax(1, keepdim=True) * 2.0**-17).all()
        return
    scale = weight.scale.double().abs()
    step = scale[:, None] if weight.group is None else scale[:, torch.arange(inputs) // weight.group]
    # The scale is itself rounded to 11 bits, the smallest to 2^-25, so that the outermost numbers may lie that much further out.
    # Symmetric grids end at 7.
    most = 1.0 + 8 * 2.0**-11 if name.endswith("-sym") else 0.51
    assert (error <= most * step + 1e-6 * matrix.abs() + 15 * 2.0**-25).all()


@formats
def test_a_matrix_of_zeros_stays_one(name: str) -> None:
    assert not rounded(name, torch.zeros(3, 70)).dequantised().any()


def test_what_is_on_the_grid_comes_back_exactly() -> None:
    levels = torch.randint(0, 16, (5, 96), generator=torch.Generator().manual_seed(1)).float()
    levels[:, ::32], levels[:, 1::32] = 0, 15
    matrix = (levels - 8) * 0.125
    assert torch.equal(rounded("int4-g32", matrix).dequantised(), matrix)
    whole = torch.randint(-127, 128, (4, 33), generator=torch.Generator().manual_seed(2)).float()
    whole[:, 0] = 127
    assert torch.equal(rounded("int8", whole * 0.5).dequantised(), whole * 0.5)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("inputs", [1024, 1025, 4096])
def test_products_of_whole_numbers_are_those_of_integers_to_the_bit(inputs: int, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the largest numbers there are, of which sums of more than 1024 inputs are no longer exact in float32."""
    monkeypatch.setattr("inferometer.nn.formats.product._integers_are_fast", lambda: fast)
    data = torch.full((3, inputs), -128, dtype=torch.int8)
    data[1, ::2], data[2] = 127, torch.arange(inputs).remainder(255).sub(127).to(torch.int8)
    weight = QuantWeight("int8", inputs, data, torch.ones(3), activations="int8")
    x = torch.full((2, inputs), 127.0)
    x[1, 1::3] = -126.0
    assert torch.equal(multiply(x, weight, None), (x.long() @ data.T.long()).float())


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 1, 1), (3, 17, 130), (40, 21, 576), (0, 5, 8)])
def test_a_product_is_that_of_the_rounded_matrix(name: str, dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(rows + outputs)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype)
    weight = rounded(name, torch.randn(outputs, inputs, generator=generator) * 0.1)
    out = multiply(x, weight, bias)
    assert out.dtype == dtype
    assert out.shape == (rows, outputs)
    wide = x.double()
    if weight.activations == "int8":
        scale = x.float().abs().amax(1, keepdim=True) / 127
        wide = (x.float() / scale).round().double() * scale.double()
    wanted = wide @ by_hand(weight).T + bias.double()
    precision = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    if rows:
        assert (out.double() - wanted).abs().max() <= precision * max(1.0, float(wanted.abs().max()))


def test_fp8_activations_are_rounded_by_row() -> None:
    matrix, x = torch.randn(8, 40), torch.randn(5, 40)
    matrix_weight = QuantLayout("fp8", activations="fp8").empty(8, 40, CPU)
    round_into(matrix_weight, matrix)
    scale = x.abs().amax(1, keepdim=True) / 448
    wanted = ((x / scale).to(torch.float8_e4m3fn).double() * scale.double()) @ by_hand(matrix_weight).T
    torch.testing.assert_close(multiply(x, matrix_weight, None).double(), wanted, rtol=1e-5, atol=1e-5)


def test_an_order_of_inputs_is_undone() -> None:
    matrix = torch.randn(6, 64)
    order = torch.randperm(64).to(torch.int32)
    plain = rounded("int4-g32", matrix[:, order.long()])
    weight = QuantWeight("int4", 64, plain.data, plain.scale, plain.zero, 32, order)
    torch.testing.assert_close(weight.dequantised(torch.float64), by_hand(weight), rtol=0, atol=0)
    x = torch.randn(3, 64)
    torch.testing.assert_close(multiply(x, weight, None), (x.double() @ by_hand(weight).T).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "int8"},
        {"inputs": 62},
        {"group": None},
        {"zero": torch.zeros(6, 1)},
        {"order": torch.arange(64)},
        {"activations": "int8"},
        {"scale": torch.zeros(6)},
    ],
)
def test_contradictions_are_refused(change: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "kind": "int4",
        "inputs": 64,
        "data": torch.zeros(6, 32, dtype=torch.uint8),
        "scale": torch.ones(6, 2),
        "group": 32,
    }
    with pytest.raises(ValueError, match=r"\S"):
        QuantWeight(**(fields | change))  # type: ignore[arg-type]
