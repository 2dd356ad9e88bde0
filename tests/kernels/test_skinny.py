"""Linear maps of few rows: the reference against the formula, the kernels against both."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import skinny
from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.arrivals import arrivals
from inferometer.kernels.finish import linear_torch
from inferometer.kernels.skinny_launch import Tiling, candidates, tiling

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Tiling(outputs=16, block=32, warps=4, stages=2, programs=3)
WHOLE = Tiling(outputs=8, block=64, warps=4, stages=1, programs=3, whole=True)
CUT = Tiling(outputs=16, block=16, warps=4, stages=2, programs=64)


@dataclass
class Case:
    """x and the residual are views, and all lie between NaN, so that what is read beside them shows."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor

    @classmethod
    def of(cls, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Case:
        draw = torch.Generator().manual_seed(seed)

        def fenced(count: int, width: int, gap: int, scale: float) -> Tensor:
            room = torch.full((count + 2, width + gap), torch.nan)
            room[1:-1, :width] = torch.randn(count, width, generator=draw) * scale
            return room.to(device, dtype)[1:-1, :width]

        bias = fenced(1, outputs, 8, 1)[0]
        return cls(fenced(rows, inputs, 16, 1), fenced(outputs, inputs, 0, inputs**-0.5), bias, fenced(rows, outputs, 8, 1))

    def exact(self) -> Tensor:
        """Of x weight^T + bias, float64."""
        return self.x.cpu().double() @ self.weight.cpu().double().T + self.bias.cpu().double()


def close(got: Tensor, want: Tensor, dtype: torch.dtype, slack: float = 1) -> None:
    assert got.dtype == dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got.cpu().double(), want.cpu().double(), atol=slack * TOLERANCE[dtype], rtol=slack * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reference_is_the_formula(dtype: torch.dtype) -> None:
    case = Case.of(3, 33, 50, dtype)
    close(skinny.skinny(case.x, case.weight, case.bias), case.exact(), dtype)
    got = skinny.skinny(case.x, case.weight, case.bias, activation="relu", residual=case.residual)
    close(got, case.exact().relu() + case.residual.double(), dtype)


SHAPES = [(48, 64), (33, 50), (5, 16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 17])
def test_kernel_is_the_formula(interpreted: Callable[..., Any], rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    case = Case.of(rows, outputs, inputs, dtype)
    for launch in (SMALL, CUT, WHOLE)[: 2 if rows > 4 else 3]:
        got = interpreted(skinny.skinny_triton, case.x, case.weight, case.bias, launch=launch)
        close(got, case.exact(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_kernel_ends_as_separate_operations_would(interpreted: Callable[..., Any], rows: int, activation: str, dtype: torch.dtype) -> None:
    case = Case.of(rows, 40, 64, dtype, seed=3)
    case.x.mul_(3)  # far out too
    for launch in (SMALL, CUT, WHOLE)[: 2 if rows > 4 else 3]:
        got = interpreted(
            skinny.skinny_triton, case.x, case.weight, case.bias, activation=activation, residual=case.residual, launch=launch
        )
        want = linear_torch(case.x, case.weight, case.bias, activation=activation, residual=case.residual)
        close(got, want, dtype, slack=4)  # squares and the like make one rounding two or four


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_all_sizes(interpreted: Callable[..., Any], activation: str) -> None:
    """From almost zero to where exponentials overflow; a map by the number 1 shows the activation alone."""
    sizes = torch.cat([torch.logspace(-6, 2.2, 300), torch.tensor([0.0])])
    weight = torch.cat([sizes, -sizes])[:, None].contiguous()
    x = torch.ones(1, 1)
    got = interpreted(skinny.skinny_triton, x, weight, activation=activation, launch=WHOLE)
    want = ACTIVATIONS[activation](weight.T.double())  # type: ignore[index]
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=4e-6)


@pytest.mark.parametrize("activation", ["relu", "relu_squared", "leaky_relu", "gelu", "silu"])
def test_what_is_no_number_stays_none(interpreted: Callable[..., Any], activation: str) -> None:
    weight = torch.full((4, 16), torch.nan)
    assert interpreted(skinny.skinny_triton, torch.ones(1, 16), weight, activation=activation, launch=SMALL).isnan().all()


@pytest.mark.parametrize("parts", ["bias", "residual", "neither"])
@pytest.mark.parametrize("rows", [1, 4])
def test_bias_and_residual_may_be_missing(interpreted: Callable[..., Any], rows: int, parts: str) -> None:
    case = Case.of(rows, 20, 32, torch.float32)
    bias = case.bias if parts == "bias" else None
    residual = case.residual if parts == "residual" else None
    for launch in (CUT, WHOLE):
        got = interpreted(skinny.skinny_triton, case.x, case.weight, bias, residual=residual, launch=launch)
        close(got, linear_torch(case.x, case.weight, bias, residual=residual), torch.float32)


def test_no_rows_and_no_outputs() -> None:
    assert skinny.skinny_triton(torch.ones(0, 4), torch.ones(3, 4)).shape == (0, 3)
    assert skinny.skinny_triton(torch.ones(2, 4), torch.ones(0, 4)).shape == (2, 0)


class TestTable:
    @pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 17, 32])
    @pytest.mark.parametrize("inputs", [1, 64, 768, 2048, 5120, 8192, 57344])
    @pytest.mark.parametrize("outputs", [1, 768, 4096, 14336, 50257, 250880])
    def test_something_serves_everything(self, rows: int, outputs: int, inputs: int) -> None:
        launches = candidates(rows, inputs)
        assert tiling(rows, outputs, inputs, 132) in launches
        assert len(set(launches)) == len(launches) > 1

    @pytest.mark.parametrize("rows", [2, 3, 4])
    @pytest.mark.parametrize("inputs", [768, 1024, 2048, 2560, 4096, 5120, 16384, 20480])
    def test_whole_rows_come_first_only_where_a_thread_holds_few_of_their_elements(self, rows: int, inputs: int) -> None:
        """More took a step of gpt3-2.7b at 4 rows 7.3 ms on an H200, and matrix products 2.4."""
        for outputs in (inputs, 4 * inputs, 50257):
            launch = tiling(rows, outputs, inputs, 132)
            assert not launch.whole or 2 * launch.block <= 16 * launch.warps * 32
            assert not (launch.whole and rows > 2)

    @pytest.mark.parametrize("rows", [2, 3, 4])
    @pytest.mark.parametrize("inputs", [768, 2048, 4096, 5120, 16384])
    def test_measuring_leaves_out_whole_rows_that_registers_hardly_hold(self, rows: int, inputs: int) -> None:
        held = [launch.block * (2 if rows == 2 else 4) // (launch.warps * 32) for launch in candidates(rows, inputs) if launch.whole]
        assert all(each <= 32 for each in held)
        assert bool(held) == (inputs <= (8192 if rows == 2 else 4096))

    def test_tiles_beyond_the_processors_are_small_ones(self) -> None:
        few, many = (tiling(16, outputs, 4096, 132) for outputs in (132 * 64, 132 * 64 + 1))
        assert (few.block, many.block) == (256, 128)
        assert many.programs > few.programs

    @pytest.mark.parametrize("outputs", [1024, 4096, 5120])
    @pytest.mark.parametrize("inputs", [768, 4096, 8192, 14336, 20480, 28672])
    def test_a_thread_never_holds_more_than_64_elements_of_one_row(self, outputs: int, inputs: int) -> None:
        launch = tiling(1, outputs, inputs, 132)
        assert launch.whole
        assert launch.block <= 64 * launch.warps * 32

    @pytest.mark.parametrize("inputs", [1, 64, 768, 2048, 5120, 8192, 57344])
    def test_sizes_are_those_of_tensors(self, inputs: int) -> None:
        for launch in (*candidates(1, inputs), *candidates(8, inputs)):
            assert all(size & (size - 1) == 0 for size in (launch.outputs, launch.block, launch.warps))
            assert launch.programs > 0
        for launch in (*candidates(1, inputs), *candidates(4, inputs), *candidates(8, inputs)):
            assert launch.block >= (inputs if launch.whole else 64)  # a cache line: what is fetched ahead goes by lines


class TestParts:
    """On a card of 132 processors."""

    LAUNCH = Tiling(outputs=64, block=128, warps=4, stages=4, programs=2)

    def test_few_outputs_are_cut_until_the_card_is_full(self) -> None:
        assert self.LAUNCH.parts(2048, 8192, 132) == 8
        assert self.LAUNCH.parts(8192, 2048, 132) == 2

    def test_many_outputs_are_not(self) -> None:
        assert self.LAUNCH.parts(50258, 2048, 132) == 1

    def test_every_part_has_something_to_do(self) -> None:
        assert self.LAUNCH.parts(64, 512, 132) == 2
        assert self.LAUNCH.parts(64, 100, 132) == 1

    @pytest.mark.parametrize("outputs", [1, 100, 3000])
    @pytest.mark.parametrize("inputs", [1, 3000, 10**6])
    def test_a_power_of_two(self, outputs: int, inputs: int) -> None:
        parts = self.LAUNCH.parts(outputs, inputs, 132)
        assert parts & (parts - 1) == 0
        assert 1 <= parts <= 32


GPU_SHAPES = [(2048, 8192), (6144, 2048), (1000, 4096), (258, 2048), (96, 80), (33, 50), (576, 1536)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("outputs", "inputs"), GPU_SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 32])
def test_gpu_is_the_formula(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Every launch that may be chosen, twice: the counters that parts share are left as they were found."""
    case = Case.of(rows, outputs, inputs, dtype, seed=int.from_bytes(os.urandom(3), "big"), device="cuda")
    for launch in candidates(rows, inputs):
        if dtype == torch.float32:  # the same bytes
            launch = replace(launch, outputs=max(1, launch.outputs // 2)) if launch.whole else replace(launch, block=launch.block // 2)
        first = skinny.skinny_triton(case.x, case.weight, case.bias, launch=launch)
        second = skinny.skinny_triton(case.x, case.weight, case.bias, launch=launch)
        close(first, case.exact(), dtype)
        assert torch.equal(first, second), launch
        assert not arrivals(case.x.device).any()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gpu_ends_as_separate_operations_would(rows: int, activation: Any, dtype: torch.dtype) -> None:
    case = Case.of(rows, 300, 512, dtype, seed=int.from_bytes(os.urandom(3), "big"), device="cuda")
    got = skinny.skinny(case.x, case.weight, case.bias, activation=activation, residual=case.residual)
    close(got, linear_torch(case.x, case.weight, case.bias, activation=activation, residual=case.residual), dtype, slack=4)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("early", [False, True])
def test_gpu_graph_of_maps_in_a_row(rows: int, early: bool) -> None:
    """Each reads what the one before it writes, however early it starts; a replay takes what lies in x then."""
    dtype, width, count = torch.bfloat16, 1024, 12
    whole = Tiling(4, 1024, 4, 1, programs=4, early=early, whole=True)
    launch = whole if rows <= 4 else Tiling(64, 128, 4, 4, programs=4, early=early)
    cases = [Case.of(rows, width, width, dtype, seed=i, device="cuda") for i in range(count)]
    static = cases[0].x.clone()

    def chain() -> Tensor:
        x = static
        for case in cases:
            x = skinny.skinny_triton(x, case.weight, case.bias, activation="gelu", residual=x, launch=launch)
        return x

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for seed in range(5):
        static.copy_(Case.of(rows, width, width, dtype, seed=100 + seed, device="cuda").x)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        got = out.clone()
        x = static
        for case in cases:
            # One launch after another, each ended: what a graph may not change.
            x = skinny.skinny_triton(x, case.weight, case.bias, activation="gelu", residual=x, launch=launch)
            torch.cuda.synchronize()
        assert torch.equal(got, x)
