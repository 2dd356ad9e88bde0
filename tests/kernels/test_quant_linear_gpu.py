"""Maps in few bits on a GPU: every launch against the reference, and several in a graph."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inferometer.kernels.arrivals import arrivals
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.quant_linear import quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny_launch import Tiling
from inferometer.model.spec import NormKind
from quant_cases import FORMATS, drawn_weight
from quant_products import TOLERANCE, close, fenced, rounded_by_blocks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


GPU_SHAPES = [(4096, 16384), (1000, 4096), (96, 80), (33, 56), (21, 328)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("outputs", "inputs"), GPU_SHAPES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(1, torch.bfloat16), (4, torch.float16), (7, torch.bfloat16), (32, torch.float16), (50, torch.bfloat16)]
    + [(64, torch.float16), (100, torch.bfloat16), (128, torch.float16)],
)
def test_gpu_is_the_formula(rows: int, name: str, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Every launch that may be chosen, twice: the counters that parts share are left as they were found."""
    seed = int.from_bytes(os.urandom(3), "big")
    weight, x = drawn_weight(outputs, inputs, **FORMATS[name], seed=seed, device="cuda"), fenced(rows, inputs, dtype, seed + 1, "cuda")
    want = x.double() @ weight.dequantised(torch.float64).T
    for launch in quant_candidates(rows, weight):
        first, second = (quant_linear_triton(x, weight, launch=launch) for _ in range(2))
        close(first, want, dtype)
        assert torch.equal(first, second), launch
        assert not arrivals(x.device).any()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("outputs", "inputs"), GPU_SHAPES)
@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.bfloat16), (7, torch.bfloat16), (32, torch.float16)])
def test_gpu_rounds_activations_where_the_format_does(rows: int, name: str, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    weight, x = drawn_weight(outputs, inputs, **FORMATS[name], seed=seed, device="cuda"), fenced(rows, inputs, dtype, seed + 1, "cuda")
    weight = replace(weight, activations=weight.kind)
    for launch in quant_candidates(rows, weight):
        given = rounded_by_blocks(x, name, launch.block) if launch.in_bytes and rows > 4 else x
        first, second = (quant_linear_triton(x, weight, launch=launch) for _ in range(2))
        plain = weight.dequantised(torch.float64)
        # A number halfway between two steps may be rounded to either of them: a step of one activation, times the largest weight.
        steps = x.double().abs().amax(dim=1, keepdim=True) / 127 * plain.abs().amax(dim=1)
        # Matrix instructions add e4m3's products up to some 13 bits below the largest, which is of the number 60 times the others.
        close(first, given.double() @ plain.T, dtype, slack=2 if name == "fp8" else 1, beside=steps if name == "int8" else 0)
        assert torch.equal(first, second), launch


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("name", ["int8", "int4 g64", "fp8"])
@pytest.mark.parametrize("rows", [1, 2, 4, 16])
def test_gpu_is_the_norm_and_the_formula(rows: int, name: str, kind: NormKind, dtype: torch.dtype) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    weight, x = drawn_weight(1000, 4096, **FORMATS[name], seed=seed, device="cuda"), fenced(rows, 4096, dtype, seed + 1, "cuda")
    gamma, beta = (fenced(1, 4096, dtype, seed + i, "cuda")[0] for i in (2, 3))
    norm = NormWeights(kind, 1e-5, gamma, beta if kind == "layer" else None)
    normed = norm_torch(x.float(), kind=kind, epsilon=1e-5, weight=gamma.float(), bias=beta.float() if kind == "layer" else None)
    plain = weight.dequantised(torch.float64)
    want = normed.to(dtype).double() @ plain.T
    # Two bytes leave out 2^-14 of the largest number of a row's block, the first row's far larger one: at random, over all inputs.
    lost = 2**-14 * normed.abs().amax(1, keepdim=True).double() * plain.norm(dim=1)
    for launch in quant_candidates(rows, weight):
        if launch.whole or launch.readied:
            got = quant_linear_triton(x, weight, norm=norm, launch=launch)
            assert ((got.double() - want).abs() <= 4 * TOLERANCE[dtype] * (1 + want.abs()) + lost).all(), launch


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["int8", "int4 g64", "fp8"])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_gpu_graph_of_maps_in_a_row(rows: int, name: str) -> None:
    """Each reads what the one before it writes, however early it starts; a replay takes what lies in x then."""
    weights = [drawn_weight(1024, 1024, **FORMATS[name], seed=i, device="cuda") for i in range(12)]
    static = fenced(rows, 1024, torch.bfloat16, 0, "cuda").contiguous()
    launches = quant_candidates(rows, weights[0])
    for launch in (launches[0], *(one for one in launches if one.readied)):
        check_chain(weights, static, launch)


def check_chain(weights: list[QuantWeight], static: Tensor, launch: Tiling) -> None:
    rows = static.shape[0]

    def chain() -> Tensor:
        x = static
        for weight in weights:
            x = quant_linear_triton(x, weight, activation="gelu", residual=x, launch=launch)
        return x

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for seed in range(5):
        static.copy_(fenced(rows, 1024, torch.bfloat16, 100 + seed, "cuda"))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        got, x = out.clone(), static
        for weight in weights:
            # One launch after another, each ended: what a graph may not change.
            x = quant_linear_triton(x, weight, activation="gelu", residual=x, launch=launch)
            torch.cuda.synchronize()
        assert torch.equal(got, x)
