"""Products in which a row's company does not count, and the trial that finds out which blocks are fit for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from inferometer.engine.device import supports
from inferometer.kernels.cancelling import cancelling, same_bits
from inferometer.kernels.gate import gate_torch
from inferometer.nn.invariant import SIZES, STANDARD, BlockProduct, agreeing_sizes
from inferometer.nn.packed import Packed
from inferometer.nn.product_choice import ProductChoice

CPU = torch.device("cpu")
DTYPES = [torch.float32, *([torch.bfloat16] if supports(CPU, torch.bfloat16) else [])]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inputs", [64, 65, 1])
def test_sums_that_cancel_are_zero(dtype: torch.dtype, inputs: int) -> None:
    x, weight = cancelling(3, 5, inputs, dtype)
    assert (x.double() @ weight.double().T).abs().max() < 1e-12
    if inputs > 1:
        assert (weight != 0).sum(1).min() == inputs // 2 * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 2, 3, 5])
@pytest.mark.parametrize("inputs", [33, 257, 570])
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 40), marks=pytest.mark.slow)])
def test_few_outputs_are_tried_on_more_rows(dtype: torch.dtype, outputs: int, inputs: int, seeds: range) -> None:
    """On two, orders of a single sum agree by chance."""
    for seed in seeds:
        x, weight = cancelling(3, outputs, inputs, dtype, seed)
        product = ProductChoice(CPU, dtype).product(weight)
        assert all(same_bits(product(x[:row])[-1:], product(x)[row - 1 : row]) for row in (1, 2, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@settings(max_examples=25, deadline=None)
@given(outputs=st.integers(1, 700), inputs=st.integers(1, 700), rows=st.integers(1, 300), seed=st.integers(0, 99), data=st.data())
def test_a_row_is_what_it_is_alone(
    dtype: torch.dtype, packed: bool, biased: bool, outputs: int, inputs: int, rows: int, seed: int, data: st.DataObject
) -> None:
    x, weight = cancelling(rows, outputs, inputs, dtype, seed)
    bias = torch.randn(outputs).to(dtype) if biased else None
    product = ProductChoice(CPU, dtype).product(weight, bias, Packed(weight) if packed and Packed.possible(weight) else None)
    row = data.draw(st.integers(0, rows - 1))
    company = data.draw(st.integers(0, row))
    residual = torch.randn(rows, outputs).to(dtype)
    whole = product(x, activation="gelu_tanh", residual=residual)
    own = product(x[row : row + 1], activation="gelu_tanh", residual=residual[row : row + 1])
    assert same_bits(own, whole[row : row + 1])
    assert same_bits(product(x[company : row + 1])[-1:], product(x)[row : row + 1])


@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (2048, 3000), (96, 32)])
def test_with_one_thread_and_with_two(threads: int, outputs: int, inputs: int) -> None:
    x, weight = cancelling(150, outputs, inputs, torch.float32)
    product = ProductChoice(CPU, torch.float32).product(weight)
    whole = product(x)
    for row in (0, 15, 16, 127, 128, 149):
        assert same_bits(product(x[row : row + 1]), whole[row : row + 1])


def test_it_is_the_product() -> None:
    x, weight, bias, residual = torch.randn(37, 50), torch.randn(20, 50), torch.randn(20), torch.randn(37, 20)
    product = ProductChoice(CPU, torch.float32).product(weight, bias)
    want = functional.silu(x.double() @ weight.double().T + bias.double()) + residual.double()
    torch.testing.assert_close(product(x, activation="silu", residual=residual).double(), want, atol=1e-4, rtol=1e-4)
    assert product(x[:0]).shape == (0, 20)


@pytest.mark.parametrize("width", [24, 48, 49, 300])
def test_gates_and_activations_take_every_row_alike(width: int) -> None:
    inner = (torch.randn(1, 2 * width) * 3).expand(9, -1).contiguous()
    product = ProductChoice(CPU, torch.float32).product(torch.eye(2 * width))
    gated = product.gate(inner, "silu")
    assert same_bits(gated, gate_torch(inner[:1], "silu"))
    assert same_bits(product(inner, activation="silu"), product(inner[:1], activation="silu"))


class Library:
    """Multiplies, and notes how many rows it is given."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.asked: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        assert x.is_contiguous()
        assert x.data_ptr() % 64 == 0
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), len(self.weight))
        for i in range(x.shape[1]):
            out += x[:, i, None] * self.weight[:, i]
        return out


class ByPlace(Library):
    """Adds up the last row of more than one backwards."""

    def product(self, x: Tensor) -> Tensor:
        out = super().product(x)
        if len(x) > 1:
            out[-1:] = _backwards(x[-1:], self.weight)
        return out


class BySize(Library):
    """Adds up backwards where there are more than 32 rows, and where there is one."""

    def product(self, x: Tensor) -> Tensor:
        return super().product(x) if 1 < len(x) <= 32 else _backwards(x, self.weight)


def _backwards(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.zeros(len(x), len(weight))
    for i in reversed(range(x.shape[1])):
        out += x[:, i, None] * weight[:, i]
    return out


def test_the_trial_finds_what_a_library_does() -> None:
    x, weight = cancelling(2, 8, 40, torch.float32)
    assert agreeing_sizes(Library(weight), x) == SIZES
    assert agreeing_sizes(ByPlace(weight), x) == (1,)
    assert agreeing_sizes(BySize(weight), x) == (STANDARD, 32)


@pytest.mark.parametrize(
    ("sizes", "rows", "asked"),
    [
        ((1,), 3, [1, 1, 1]),
        ((16,), 1, [16]),
        ((16,), 40, [16, 16, 16]),
        ((1, 16, 32), 1, [1]),
        ((1, 16, 32), 17, [32]),
        ((16, 32, 64, 128), 300, [128, 128, 64]),
        ((16, 32, 64, 128), 129, [128, 16]),
    ],
)
def test_blocks_are_of_sizes_that_agree(sizes: tuple[int, ...], rows: int, asked: list[int]) -> None:
    x, weight = torch.randn(rows, 5), torch.randn(3, 5)
    library = Library(weight)
    torch.testing.assert_close(BlockProduct(library, sizes)(x), x @ weight.T)
    assert library.asked == asked
