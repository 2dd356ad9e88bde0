"""Rows and weights in eight bits, and weights widened as a whole: against the references and the formula."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from inferometer.kernels.eight_bit_matmul import Blocks, blocks, eight_bit_matmul
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.quant_choice import PRODUCTS, format_name, multiplies, quant_many
from inferometer.kernels.quant_widened import widened, widened_triton
from inferometer.kernels.rounded_rows import LARGEST, Rounded, round_rows, round_rows_torch, round_rows_triton
from inferometer.kernels.support import capability
from quant_cases import FORMATS, drawn_weight

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = Blocks(16, 16, 32, 4, 1, band=2)


def rows_of(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3
    x[0] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", get_args(Rounded))
def test_rows_are_rounded_by_a_scale_of_their_own(kind: Rounded, dtype: torch.dtype) -> None:
    x = rows_of(5, 70, dtype)
    levels, scale = round_rows(x, kind)
    assert scale[0] == 0
    assert (levels[0].float() == 0).all()
    assert torch.equal(levels[1:].float().abs().amax(1), torch.full((4,), LARGEST[kind]))
    step = scale[1:, None] * (0.5 if kind == "int8" else 16.0)
    assert ((levels[1:].float() * scale[1:, None] - x[1:].float()).abs() <= step * 1.001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", get_args(Rounded))
def test_kernel_rounds_as_the_reference(interpreted: Callable[..., Any], kind: Rounded, dtype: torch.dtype) -> None:
    x = rows_of(5, 70, dtype)
    got, want = interpreted(round_rows_triton, x, kind), round_rows_torch(x, kind)
    # Triton's interpreter loses the carry where e4m3 is rounded up to a power of two: there alone the two may differ.
    carried = (torch.frexp(want[0].float()).mantissa.abs() == 0.5) if kind == "fp8" else torch.zeros(5, 70, dtype=torch.bool)
    assert torch.equal(got[0].float()[~carried], want[0].float()[~carried])
    torch.testing.assert_close(got[1], want[1], atol=0, rtol=3e-7)


def test_a_row_with_what_is_no_number(interpreted: Callable[..., Any]) -> None:
    x = rows_of(3, 20, torch.float32)
    x[1, 4] = torch.inf
    x[2, 4] = torch.nan
    _, scale = interpreted(round_rows_triton, x, "int8")
    assert scale.isnan().tolist() == [False, True, True]


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(40, 33, 70), (17, 16, 64)])
def test_kernel_multiplies_whole_numbers_exactly(interpreted: Callable[..., Any], rows: int, outputs: int, inputs: int) -> None:
    weight, x = drawn_weight(outputs, inputs, "int8"), rows_of(rows, inputs, torch.float32)
    levels, scale = round_rows(x, "int8")
    bias, residual = torch.randn(outputs), torch.randn(rows, outputs)
    got = interpreted(eight_bit_matmul, levels, scale, weight, torch.float32, bias, activation="relu", residual=residual, chosen=SMALL)
    sums = levels.double() @ weight.data.double().T * scale.double()[:, None] * weight.scale.double()
    torch.testing.assert_close(got.double(), finish_torch(sums + bias, "relu", residual.double()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("inputs", [1, 50, 99, 200])
def test_kernel_widens_as_the_reference(interpreted: Callable[..., Any], name: str, inputs: int) -> None:
    for dtype in (torch.float32, torch.float16):
        weight = drawn_weight(5, inputs, **FORMATS[name])
        got = interpreted(widened_triton, weight, dtype)
        torch.testing.assert_close(got, weight.dequantised().to(dtype), atol=0, rtol=3e-7 if dtype == torch.float32 else 0)


def test_kernel_puts_columns_in_order(interpreted: Callable[..., Any]) -> None:
    weight = drawn_weight(5, 96, "int4", group=32, ordered=True)
    torch.testing.assert_close(interpreted(widened_triton, weight, torch.float32), weight.dequantised(), atol=0, rtol=3e-7)
    assert torch.equal(widened(weight, torch.float16), weight.dequantised().half())


def test_formats_have_names_of_their_own() -> None:
    names = {format_name(drawn_weight(4, 256, **FORMATS[name])) for name in FORMATS}
    assert len(names) == len(FORMATS)
    assert format_name(drawn_weight(4, 64, "int4", group=32, ordered=True)) == "int4 g32 zero float16 ordered"


def test_nothing_multiplies_eight_bits_on_a_cpu() -> None:
    assert not any(multiplies(kind, torch.device("cpu")) for kind in (*PRODUCTS, "wide"))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", get_args(Rounded))
def test_gpu_rounds_as_the_reference(kind: Rounded, dtype: torch.dtype) -> None:
    if capability(torch.device("cuda", torch.cuda.current_device())) < PRODUCTS[kind]:
        pytest.skip("this card does not multiply these")
    for width in (50, 4096, 16384):
        x = rows_of(33, width, dtype, int.from_bytes(os.urandom(3), "big")).cuda()
        (got, scale), (want, wanted) = round_rows_triton(x, kind), round_rows_torch(x, kind)
        torch.testing.assert_close(scale, wanted, atol=0, rtol=3e-7)
        # A division that is off by its last bit may round a tie to the other side: of few numbers a few.
        assert (got.float() != want.float()).sum() <= max(4, x.numel() // 1000)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(300, 1000, 4096), (1025, 258, 2064), (33, 96, 80), (256, 4096, 16384)])
@pytest.mark.parametrize("kind", get_args(Rounded))
def test_gpu_multiplies_eight_bits(kind: Rounded, rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    if capability(device) < PRODUCTS[kind]:
        pytest.skip("this card does not multiply these")
    seed = int.from_bytes(os.urandom(3), "big")
    weight, x = drawn_weight(outputs, inputs, kind, seed=seed, device="cuda"), rows_of(rows, inputs, dtype, seed).cuda()
    levels, scale = round_rows(x, kind)
    bias, residual = (rows_of(count, outputs, dtype, seed + 1).cuda() for count in (2, rows))
    sums = levels.double() @ weight.data.double().T * scale.double()[:, None] * weight.scale.double()
    want = finish_torch(sums + bias[1].double(), "gelu", residual.double())
    # What is rounded three times may be larger than the result, in which parts cancel.
    most = 2 * torch.finfo(dtype).eps * (sums.abs() + bias[1].abs() + residual.abs())
    if kind == "fp8":
        # Sums are kept in 14 bits: each step, of 32 inputs, may lose 2^-13 of a sum that on its way is as large as others, or as its end.
        most += inputs / 32 * 2.0**-13 * (sums.square().mean().sqrt() + sums.abs())
    for chosen in blocks(device):
        got = eight_bit_matmul(levels, scale, weight, dtype, bias[1], activation="gelu", residual=residual, chosen=chosen)
        error = (got.double() - want).abs()
        assert float((error / most).max()) <= 1, chosen
        assert float(error.norm() / want.norm()) <= 1e-2, chosen


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("ordered", [False, True])
def test_gpu_widens_as_the_reference(name: str, ordered: bool) -> None:
    if ordered and not name.startswith("int4"):
        pytest.skip("the others' columns are in order")
    for outputs, inputs in ((1000, 4096), (33, 50), (21, 331)):
        weight = drawn_weight(outputs, inputs, **FORMATS[name], ordered=ordered, seed=int.from_bytes(os.urandom(3), "big"), device="cuda")
        torch.testing.assert_close(widened(weight, torch.float32), weight.dequantised(), atol=0, rtol=3e-7)


@pytest.mark.gpu
@needs_gpu
def test_gpu_many_rows_from_end_to_end() -> None:
    from dataclasses import replace

    weight = replace(drawn_weight(512, 1024, "int8", device="cuda"), activations="int8")
    x = rows_of(200, 1024, torch.bfloat16, 5).cuda()
    levels, scale = round_rows_torch(x, "int8")
    want = (levels.double() * scale.double()[:, None]) @ weight.dequantised(torch.float64).T
    torch.testing.assert_close(quant_many(x, weight, None).double(), want, atol=2e-2, rtol=2e-2)
