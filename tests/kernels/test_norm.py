"""Residual and norm: the reference and the kernel against the formula, and against each other where they round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import norm as norms
from inferometer.model.spec import NormKind

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

EPSILON = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Case:
    """Rows that are far from zero mean, with an addition or without."""

    def __init__(
        self, kind: NormKind, hidden: int, dtype: torch.dtype, *, added: bool, weighted: bool = True, biased: bool = True, seed: int = 0
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.kind: NormKind = kind
        rows = 3 * torch.randn(2, 5, hidden, generator=draw) + torch.randn(2, 5, 1, generator=draw)
        weight, bias = torch.randn(2, hidden, generator=draw).to(dtype)
        self.x = rows[0].to(dtype)
        self.delta = rows[1].to(dtype) if added else None
        self.weight = weight if weighted else None
        self.bias = bias if biased and kind == "layer" else None

    @property
    def sum(self) -> Tensor:
        return self.x if self.delta is None else self.x + self.delta

    @property
    def exact(self) -> Tensor:
        """float64, of the rounded sum."""
        value = self.sum.double()
        if self.kind == "layer":
            value = value - value.mean(1, keepdim=True)
        value = value / (value.square().mean(1, keepdim=True) + EPSILON).sqrt()
        if self.weight is not None:
            value = value * self.weight.double()
        return value if self.bias is None else value + self.bias.double()

    def check(self, run: Callable[..., Tensor], device: str = "cpu", *, exactly: bool = True) -> None:
        """exactly: the sum is that of torch to the last bit."""
        x, delta, weight, bias = (
            None if tensor is None else tensor.clone().to(device) for tensor in (self.x, self.delta, self.weight, self.bias)
        )
        got = run(x, delta, kind=self.kind, epsilon=EPSILON, weight=weight, bias=bias)
        assert got.dtype == self.x.dtype
        tolerance = TOLERANCE[self.x.dtype]
        if exactly:
            assert torch.equal(x.cpu(), self.sum)
        torch.testing.assert_close(x.cpu(), self.sum, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(got.cpu().double(), self.exact, atol=tolerance, rtol=tolerance)


KINDS: tuple[NormKind, ...] = ("layer", "rms")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("added", [False, True])
def test_reference_is_the_formula(kind: NormKind, dtype: torch.dtype, added: bool) -> None:
    Case(kind, 48, dtype, added=added).check(norms.norm)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weighted", "biased"), [(False, False), (True, False), (False, True)])
def test_reference_without_weight_or_bias(kind: NormKind, weighted: bool, biased: bool) -> None:
    Case(kind, 48, torch.float32, added=True, weighted=weighted, biased=biased).check(norms.norm)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [7, 64, 2560, 16384])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("added", [False, True])
def test_kernel_is_the_formula(interpreted: Callable[..., Any], kind: NormKind, hidden: int, dtype: torch.dtype, added: bool) -> None:
    case = Case(kind, hidden, dtype, added=added)
    # The interpreter cuts float32 off to bfloat16 instead of rounding it. What it writes to tensors is here: processes share their memory.
    case.check(partial(interpreted, norms.norm_triton), exactly=dtype != torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weighted", "biased"), [(False, False), (True, False), (False, True)])
def test_kernel_without_weight_or_bias(interpreted: Callable[..., Any], kind: NormKind, weighted: bool, biased: bool) -> None:
    case = Case(kind, 80, torch.float32, added=True, weighted=weighted, biased=biased)
    case.check(partial(interpreted, norms.norm_triton))


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_rounds_where_torch_does(interpreted: Callable[..., Any], kind: NormKind) -> None:
    case = Case(kind, 512, torch.float16, added=True)
    named = {"kind": kind, "epsilon": EPSILON, "weight": case.weight, "bias": case.bias}
    got = interpreted(norms.norm_triton, case.x.clone(), case.delta.clone(), **named)
    want = norms.norm_torch(case.x.clone(), case.delta, **named)
    assert (got == want).float().mean() > 0.99  # sums in another order may round another way


def test_no_rows(interpreted: Callable[..., Any]) -> None:
    got = interpreted(norms.norm_triton, torch.empty(0, 32), torch.empty(0, 32), kind="rms", epsilon=EPSILON)
    assert got.shape == (0, 32)


def test_rows_too_wide_for_the_kernel_are_refused_there_and_served_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("layer", norms.WIDEST + 1, torch.float32, added=False)
    with pytest.raises(ValueError, match="wider than 16384"):
        norms.norm_triton(case.x, kind="layer", epsilon=EPSILON)
    monkeypatch.setattr(norms, "usable", lambda device: True)
    case.check(norms.norm)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [7, 768, 2048, 2560, 4096, 5120, 12288, 16384, 20000])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gpu_is_the_formula(kind: NormKind, hidden: int, dtype: torch.dtype, added: bool, weighted: bool) -> None:
    seed = int(torch.randint(2**31, ()))
    Case(kind, hidden, dtype, added=added, weighted=weighted, biased=weighted, seed=seed).check(norms.norm, "cuda")
