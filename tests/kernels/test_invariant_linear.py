"""Linear maps in one order of additions: the reference and the kernel against the formula, every form against every other, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import invariant_linear as module
from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.cancelling import cancelling, same_bits
from inferometer.kernels.invariant_linear import Form, forms, invariant_linear, invariant_linear_triton, parts_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = (Form(16, 16, 64, 4, 1, True), Form(32, 16, 32, 4, 1, True), Form(16, 32, 32, 4, 1, False))
CPU = torch.device("cpu")


def draw(rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias, residual."""
    generator = torch.Generator().manual_seed(seed)
    x, residual, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, inputs), (rows, outputs), (outputs,)))
    return x, (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).to(dtype), bias, residual


def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.cpu().double() @ weight.cpu().double().T + bias.cpu().double()


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got.cpu().double(), want, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reference_is_the_formula(dtype: torch.dtype) -> None:
    x, weight, bias, residual = draw(3, 33, 50, dtype)
    close(invariant_linear(x, weight, bias), exact(x, weight, bias), dtype)
    close(invariant_linear(x, weight, bias, activation="relu", residual=residual), exact(x, weight, bias).relu() + residual.double(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 640), (33, 300), (5, 16)])
@pytest.mark.parametrize("form", SMALL, ids=["few", "more", "strips"])
def test_kernel_is_the_formula(interpreted: Callable[..., Any], form: Form, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight, bias, residual = draw(37, outputs, inputs, dtype)
    for parts in (1, 2, 4) if dtype == torch.float32 else (4,):  # sums are float32 whatever they are of
        got = interpreted(invariant_linear_triton, x, weight, bias, among=(form,), parts=parts)
        close(got, exact(x, weight, bias), dtype)
    got = interpreted(invariant_linear_triton, x, weight, bias, activation="relu", residual=residual, among=(form,), parts=2)
    close(got, exact(x, weight, bias).relu() + residual.double(), dtype)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_kernel_ends_as_separate_operations_would(interpreted: Callable[..., Any], activation: Any) -> None:
    x, weight, bias, residual = draw(3, 16, 32, torch.float16)
    plain = interpreted(invariant_linear_triton, x, weight, bias, among=SMALL)
    want = plain if activation is None else ACTIVATIONS[activation](plain)
    got = interpreted(invariant_linear_triton, x, weight, bias, activation=activation, residual=residual, among=SMALL)
    torch.testing.assert_close(got, residual + want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_every_form_cuts_and_adds_in_the_same_order(interpreted: Callable[..., Any], parts: int) -> None:
    """Parts of their own, or one after another: the sums are those of the parts, added up in their order. 700 inputs: the last part
    is shorter than the others, and the last block is not full."""
    x, weight = cancelling(48, 40, 700, torch.float32)
    span = -(-6 // parts) * 128
    want = torch.zeros(48, 40)
    for start in range(0, 700, span):
        want += interpreted(invariant_linear_triton, x[:, start : start + span].contiguous(), weight[:, start : start + span].contiguous(),
                            among=SMALL[:1], parts=1)  # fmt: skip
    few = interpreted(invariant_linear_triton, x, weight, among=SMALL[:1], parts=parts)
    strips = interpreted(invariant_linear_triton, x, weight, among=(replace(SMALL[0], apart=False),), parts=parts)
    assert same_bits(few, want)
    assert same_bits(strips, few)


def test_a_row_at_another_address_is_the_same_row(interpreted: Callable[..., Any]) -> None:
    x, weight, _, _ = draw(20, 24, 33, torch.float16)
    whole = interpreted(invariant_linear_triton, x, weight, among=SMALL)
    for row in (1, 7, 19):
        assert same_bits(interpreted(invariant_linear_triton, x[row : row + 1], weight, among=SMALL), whole[row : row + 1])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_in_nothing_out(interpreted: Callable[..., Any], shape: tuple[int, int]) -> None:
    rows, outputs = shape
    got = interpreted(invariant_linear_triton, torch.zeros(rows, 16), torch.zeros(outputs, 16), among=SMALL)
    assert got.shape == shape


@pytest.mark.parametrize(
    ("outputs", "inputs", "parts"),
    [(12288, 4096, 1), (4096, 4096, 4), (4096, 16384, 4), (2048, 2048, 8), (2048, 8192, 8), (50272, 4096, 1), (64, 64, 1), (64, 10**6, 16)],
)
def test_sums_are_cut_as_the_card_needs_for_few_rows(outputs: int, inputs: int, parts: int) -> None:
    assert parts_of(outputs, inputs, 132) == parts


def test_blocks_divide_the_unit_in_which_sums_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ((7, 5), (8, 0), (8, 6), (9, 0), (12, 0)):
        monkeypatch.setattr(module, "capability", lambda device, found=capability: found)
        for dtype in (torch.float16, torch.float32):
            choice = forms(dtype, CPU)
            assert all(module.UNIT % form.block == 0 and form.rows % choice[0].rows == 0 for form in choice)
            assert [form.rows for form in choice] == sorted(form.rows for form in choice)
            assert not choice[-1].apart
            # What shares the instruction: the weight's side has whole 64 rows of it.
            assert all(form.outputs % 64 == 0 for form in choice)


@pytest.mark.parametrize(("odd", "left"), [((), (0, 1, 2)), ((0,), (1, 2)), ((2,), (0, 1)), ((0, 2), (1,)), ((1,), (1,))])
def test_forms_that_disagree_are_left_out(monkeypatch: pytest.MonkeyPatch, odd: tuple[int, ...], left: tuple[int, ...]) -> None:
    """A card on which some tiles add up backwards."""
    monkeypatch.setattr(module, "capability", lambda device: (9, 0))
    choice = forms(torch.bfloat16, CPU)

    def launched(x: Tensor, weight: Tensor, *, among: tuple[Form, ...], parts: int) -> Tensor:
        backwards = choice.index(among[0]) in odd
        total = torch.zeros(len(x), len(weight))
        for i in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
            total += x[:, i, None] * weight[:, i]
        return total

    monkeypatch.setattr(module, "invariant_linear_triton", launched)
    assert module.agreeing_forms(64, 96, torch.bfloat16, CPU) == tuple(choice[i] for i in left)


def test_a_card_on_which_places_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "capability", lambda device: (9, 0))
    monkeypatch.setattr(module, "invariant_linear_triton", lambda x, weight, **_: torch.arange(len(x) * 64.0).view(-1, 64))
    with pytest.raises(RuntimeError, match="cannot be deterministic"):
        module.agreeing_forms(64, 96, torch.bfloat16, CPU)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("outputs", "inputs"), [(1000, 300), (2048, 2048), (4096, 4096), (2048, 8192), (96, 32), (50258, 256)])
@pytest.mark.parametrize("rows", [1, 16, 40, 300])
def test_gpu_is_the_formula(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight, bias, residual = (t.cuda() for t in draw(rows, outputs, inputs, dtype, seed=int(torch.randint(2**31, ()))))
    close(invariant_linear(x, weight, bias), exact(x, weight, bias), dtype)
    close(
        invariant_linear(x, weight, bias, activation="relu", residual=residual),
        exact(x, weight, bias).relu() + residual.cpu().double(),
        dtype,
    )


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("outputs", "inputs"), [(12288, 4096), (4096, 16384), (2048, 2048), (2048, 8192), (1000, 300), (96, 32)])
def test_gpu_rows_have_the_same_bits_in_any_company(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Sums that cancel: what is left is the order of additions."""
    seed = int(torch.randint(2**31, ()))
    x, weight = (t.cuda() for t in cancelling(700, outputs, inputs, dtype, seed=seed))
    agreed = module.agreeing_forms(outputs, inputs, dtype, x.device)
    whole = invariant_linear_triton(x, weight, among=agreed)
    for count in (1, 2, 15, 16, 17, 64, 127, 128, 129, 300):
        first = int(torch.randint(700 - count, ()))
        assert same_bits(invariant_linear_triton(x[first : first + count], weight, among=agreed), whole[first : first + count])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gpu_forms_agree_on_this_card(dtype: torch.dtype) -> None:
    """If they did not, results would still be right, but many rows would run as slices of few."""
    device = torch.device("cuda", 0)
    for outputs, inputs in ((4096, 4096), (12288, 4096), (2048, 8192)):
        assert module.agreeing_forms(outputs, inputs, dtype, device) == forms(dtype, device)
