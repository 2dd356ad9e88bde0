"""Linear maps of few rows and weights in few bits: every kernel against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferometer.kernels.finish import finish_torch
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.quant_linear import quant_linear_torch, quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import NormKind
from quant_cases import FORMATS, drawn_weight
from quant_products import IN_BYTES, close, exact, fenced, launches_for, whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMATS)
def test_reference_is_the_formula(name: str, dtype: torch.dtype) -> None:
    weight, x = drawn_weight(33, 50, **FORMATS[name]), fenced(3, 50, dtype, 1)
    residual = torch.ones(3, 33, dtype=dtype)
    got = quant_linear_torch(x, weight, activation="relu", residual=residual)
    close(got, exact(x, weight).relu() + 1, dtype)


@pytest.mark.parametrize(
    ("name", "rows", "dtype"),
    [
        *((name, rows, torch.float16) for name in FORMATS for rows in (1, 6)),
        ("int8", 3, torch.bfloat16), ("fp8", 3, torch.bfloat16), ("int4 g32", 3, torch.bfloat16), ("int4 g64 symmetric", 2, torch.float16),
    ],
)  # fmt: skip
def test_kernel_is_the_formula(interpreted: Callable[..., Any], name: str, rows: int, dtype: torch.dtype) -> None:
    weight, x = drawn_weight(21, 328, **FORMATS[name]), fenced(rows, 328, dtype, 2)
    for launch in launches_for(weight, rows):
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(x, weight), dtype)


@pytest.mark.parametrize("name", ["fp8", "int4 g32", "int4 all"])
@pytest.mark.parametrize("inputs", [8, 40, 72, 264])
def test_any_number_of_words(interpreted: Callable[..., Any], name: str, inputs: int) -> None:
    weight, x = drawn_weight(7, inputs, **FORMATS[name]), fenced(5, inputs, torch.float32, 3)
    for launch in launches_for(weight, 5):
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(x, weight), torch.float32)


@pytest.mark.parametrize("rows", [33, 64])
@pytest.mark.parametrize("name", ["int8", "int4 g64"])
def test_up_to_64_rows(interpreted: Callable[..., Any], name: str, rows: int) -> None:
    weight, x = drawn_weight(20, 264, **FORMATS[name]), fenced(rows, 264, torch.float16, 13)
    residual = fenced(rows, 20, torch.float16, 14)
    for launch in launches_for(weight, rows):
        got = interpreted(quant_linear_triton, x, weight, residual=residual, launch=launch)
        close(got, exact(x, weight) + residual.double(), torch.float16)


@pytest.mark.parametrize(("name", "rows"), [pytest.param("int8", 4, marks=pytest.mark.slow), ("int4 g64", 6), ("fp8", 1)])
def test_kernel_ends_as_separate_operations_would(interpreted: Callable[..., Any], name: str, rows: int) -> None:
    dtype = torch.float16
    weight, x = drawn_weight(40, 256, **FORMATS[name]), fenced(rows, 256, dtype, 4)
    bias, residual = fenced(1, 40, dtype, 5)[0], fenced(rows, 40, dtype, 6)
    for launch in (*launches_for(weight, rows), *(IN_BYTES[:1] if weight.kind != "int4" else ())):
        got = interpreted(quant_linear_triton, x, weight, bias, activation="gelu", residual=residual, launch=launch)
        want = finish_torch((exact(x, weight) + bias.double()), "gelu", residual.double())
        close(got, want, dtype, slack=2)


@pytest.mark.parametrize(("name", "rows", "kind"), [("int8", 1, "layer"), ("int4 g32", 2, "rms"), ("fp8", 4, "layer")])
def test_rows_are_normed_first(interpreted: Callable[..., Any], rows: int, kind: NormKind, name: str) -> None:
    dtype = torch.float16
    weight, x = drawn_weight(20, 264, **FORMATS[name]), fenced(rows, 264, dtype, 7)
    gamma, beta = fenced(1, 264, dtype, 8)[0], fenced(1, 264, dtype, 9)[0] if kind == "layer" else None
    got = interpreted(quant_linear_triton, x, weight, norm=NormWeights(kind, 1e-5, gamma, beta), launch=whole(weight, 8))
    normed = norm_torch(x.float(), kind=kind, epsilon=1e-5, weight=gamma.float(), bias=None if beta is None else beta.float())
    want = exact(normed.to(dtype), weight)
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("rows", [2, 7])
def test_columns_in_another_order(interpreted: Callable[..., Any], rows: int) -> None:
    for name in ("int8", "int4 g32"):
        weight, x = drawn_weight(24, 96, **FORMATS[name], ordered=True), fenced(rows, 96, torch.float16, 10)
        if weight.kind == "int8":
            assert weight.order is not None
            want = x[:, weight.order.long()].double() @ (weight.levels(torch.float64) * weight.scale.double()[:, None]).T
        else:
            want = exact(x, weight)
        for launch in launches_for(weight, rows):
            close(interpreted(quant_linear_triton, x, weight, launch=launch), want, torch.float16)


@pytest.mark.parametrize("name", ["int8", "int4 g64"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none(interpreted: Callable[..., Any], name: str, bad: float) -> None:
    """In fixed point there is none: an infinity comes out as no number, and other rows are as they were."""
    weight, x = drawn_weight(8, 64, **FORMATS[name]), fenced(2, 64, torch.float16, 11)
    x[0, 3] = bad
    got = interpreted(quant_linear_triton, x, weight, launch=whole(weight, 4))
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


@pytest.mark.parametrize("size", [1e-7, 1e-30, 1e30, 0.0])
def test_rows_of_any_size(interpreted: Callable[..., Any], size: float) -> None:
    for name in ("int8", "int4 g32", "fp8"):
        weight, x = drawn_weight(8, 64, **FORMATS[name]), (fenced(1, 64, torch.float32, 12) * size).to(torch.bfloat16)
        got = interpreted(quant_linear_triton, x, weight, launch=whole(weight, 4))
        want = exact(x, weight)
        assert float((got.double() - want).norm()) <= 1e-2 * float(want.norm())


def test_no_rows_and_no_outputs() -> None:
    weight = drawn_weight(3, 8, "int8")
    assert quant_linear_triton(torch.ones(0, 8), weight).shape == (0, 3)
    nothing = QuantWeight("int8", 8, torch.ones(0, 8, dtype=torch.int8), torch.ones(0))
    assert quant_linear_triton(torch.ones(2, 8), nothing).shape == (2, 0)
