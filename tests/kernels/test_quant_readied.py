"""Maps in few bits whose rows are split into bytes, or brought into the form of the product by a launch before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.quant_linear import quant_linear_triton
from inferometer.kernels.skinny_launch import Tiling
from inferometer.model.spec import NormKind
from quant_cases import FORMATS, drawn_weight
from quant_products import IN_BYTES, READIED, close, exact, fenced, rounded_by_blocks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_kernel_in_bytes_is_the_formula(interpreted: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    """Rows are split into two bytes: what is lost is below what the type holds, also beside a number that is far larger."""
    for rows, inputs, launch in ((6, 328, IN_BYTES[0]), (17, 256, IN_BYTES[1]), (5, 8, IN_BYTES[0]), (1, 72, IN_BYTES[1])):
        weight, x = drawn_weight(21, inputs, **FORMATS[name]), fenced(rows, inputs, dtype, 2)
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(x, weight), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", READIED)
def test_kernel_of_readied_rows_is_the_formula(interpreted: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    """Also where the last group is short, the last iteration is none of whole groups, or there is no row of some that are padded."""
    for rows, inputs in ((6, 352), (17, 256), (5, 32), (1, 736), (5, 1024)):
        weight, x = drawn_weight(21, inputs, **FORMATS[name]), fenced(rows, inputs, dtype, 2)
        residual = fenced(rows, 21, dtype, 3)
        got = interpreted(quant_linear_triton, x, weight, residual=residual, launch=READIED[name])
        close(got, exact(x, weight) + residual.double(), dtype)


@pytest.mark.parametrize("rows", [33, 70, 130])
def test_kernel_of_many_readied_rows_is_the_formula(interpreted: Callable[..., Any], rows: int) -> None:
    """All of them in one program, also where half of the padded ones are none."""
    weight, x = drawn_weight(21, 200, "int8"), fenced(rows, 200, torch.float16, 2)
    launch = Tiling(64, 128, 4, 2, 1, in_bytes=True, readied=True)
    got = interpreted(quant_linear_triton, x, weight, launch=launch)
    close(got, exact(x, weight), torch.float16)


@pytest.mark.parametrize("readied", [False, True])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_activations_of_8_bits_are_one_number_each(interpreted: Callable[..., Any], name: str, readied: bool) -> None:
    """From five rows on, where the format rounds them: each row's by blocks of inputs. Fewer are as they are."""
    launch = Tiling(64, 128, 4, 2, 64, in_bytes=True, readied=readied)
    for rows, inputs, dtype in ((6, 328, torch.float16), (17, 256, torch.bfloat16), (4, 256, torch.float16)):
        weight = drawn_weight(21, inputs, **FORMATS[name])
        weight, x = replace(weight, activations=weight.kind), fenced(rows, inputs, dtype, 2)
        given = rounded_by_blocks(x, name, 128) if rows > 4 else x
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(given, weight), dtype)


@pytest.mark.parametrize("size", [1e-7, 1e-30, 1e30, 0.0])
def test_rows_of_any_size_in_bytes(interpreted: Callable[..., Any], size: float) -> None:
    for name in ("int8", "fp8"):
        weight, x = drawn_weight(8, 64, **FORMATS[name]), (fenced(5, 64, torch.float32, 12) * size).to(torch.bfloat16)
        want = exact(x, weight)
        for launch in (IN_BYTES[0], READIED[name]):
            for given, off in ((weight, 1e-2), (replace(weight, activations=weight.kind), 5e-2)):
                got = interpreted(quant_linear_triton, x, given, launch=launch)
                assert float((got.double() - want).norm()) <= off * float(want.norm())


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_in_bytes(interpreted: Callable[..., Any], name: str, bad: float) -> None:
    weight, x = drawn_weight(8, 64, **FORMATS[name]), fenced(6, 64, torch.float16, 11)
    x[2, 3] = bad
    for launch in (IN_BYTES[0], READIED[name]):
        for given in (weight, replace(weight, activations=weight.kind)):
            got = interpreted(quant_linear_triton, x, given, launch=launch)
            assert got[2].isnan().all()
            assert got[[0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize(
    ("name", "kind"), [("int8", "layer"), ("int8", "rms"), ("fp8", "rms"), ("int4 g64", "layer"), ("int4 g128", "rms")]
)
def test_rows_are_normed_where_they_are_readied(interpreted: Callable[..., Any], name: str, kind: NormKind) -> None:
    dtype = torch.float16
    weight, x = drawn_weight(20, 352, **FORMATS[name]), fenced(6, 352, dtype, 7)
    gamma, beta = fenced(1, 352, dtype, 8)[0], fenced(1, 352, dtype, 9)[0] if kind == "layer" else None
    got = interpreted(quant_linear_triton, x, weight, norm=NormWeights(kind, 1e-5, gamma, beta), launch=READIED[name])
    normed = norm_torch(x.float(), kind=kind, epsilon=1e-5, weight=gamma.float(), bias=None if beta is None else beta.float())
    torch.testing.assert_close(got.double(), exact(normed.to(dtype), weight), atol=2e-2, rtol=1e-2)
