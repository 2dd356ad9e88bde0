"""Best tokens from hidden states, without logits: those of the logits that the same launch would write."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import head_choice
from inferometer.kernels.head_choice import choose_best, choose_best_torch, choose_best_triton
from inferometer.kernels.head_matrix import Matrix, head_product
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.skinny import skinny_peaks
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, candidates
from inferometer.kernels.token_choice import choose_torch
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import NormKind
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import rounded

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = Tiling(outputs=16, block=32, warps=4, stages=2)
CUT = Tiling(outputs=16, block=16, warps=4, stages=2, programs=64)
WHOLE = Tiling(outputs=4, block=64, warps=4, stages=1, programs=3, whole=True)
SINGLE = Tiling(outputs=1, block=64, warps=4, stages=1, programs=64, whole=True)
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def inputs_of(rows: int, vocabulary: int, width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states, and a weight with equal rows, so that there are equal logits."""
    draw = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, width, generator=draw), torch.randn(vocabulary, width, generator=draw) * 2 * width**-0.5
    weight[vocabulary // 2 :] = weight[: vocabulary - vocabulary // 2].clone()
    if rows > 2:
        x[1] = math.nan
    return x.to(dtype), weight.to(dtype)


def both(x: Tensor, weight: Matrix, launch: Tiling, norm: NormWeights | None = None) -> tuple[Places, Tensor]:
    """The tokens, and the logits of the same launch."""
    rows = len(x)
    seats, newest = torch.arange(rows, device=x.device) + 1, torch.zeros(rows + 1, dtype=torch.int64, device=x.device)
    places = Places.on(x.device, rows).seated(seats, newest)
    choose_best_triton(x, weight, places, launch, norm)
    return places, head_product(x, weight, launch, norm)


def check(places: Places, logits: Tensor) -> None:
    want = Places.on(torch.device("cpu"), len(logits))
    choose_torch(logits.cpu(), want)
    assert torch.equal(places.token_ids.cpu(), want.token_ids)
    torch.testing.assert_close(places.logprobs.cpu(), want.logprobs, atol=4e-6, rtol=4e-6)
    assert places.newest is not None
    assert places.newest.tolist() == [0, *want.token_ids.tolist()]


# Each type with several rows, each number of rows with one type.
@pytest.mark.parametrize(
    ("rows", "dtype"), [(1, TYPES[0]), pytest.param(2, TYPES[1], marks=pytest.mark.slow), *((3, dtype) for dtype in TYPES), (17, TYPES[2])]
)
@pytest.mark.parametrize(("vocabulary", "width"), [pytest.param(150, 64, marks=pytest.mark.slow), (33, 50)])
@pytest.mark.parametrize("launch", [SMALL, CUT, WHOLE, SINGLE], ids=["blocks", "cut", "whole", "single"])
def test_tokens_are_those_of_the_logits(
    interpreted: Callable[..., Any], rows: int, vocabulary: int, width: int, dtype: torch.dtype, launch: Tiling
) -> None:
    if launch.whole and rows > 4:
        launch = replace(CUT, programs=2)
    x, weight = inputs_of(rows, vocabulary, width, dtype)
    check(*interpreted(both, x, weight, launch))


# Tiles of each launch, the last of them in part: one that holds its rows whole has small ones.
WORDS_OF = {"whole": 42, "few": 150, "bytes": 150, "readied": 150}
EIGHT_BITS = {
    "whole": replace(WHOLE, block=64),
    "few": Tiling(64, 64, 4, 2, 3),
    "bytes": Tiling(64, 128, 4, 2, 64, in_bytes=True),
    "readied": Tiling(32, 128, 2, 2, 3, in_bytes=True, readied=True),
}


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (3, torch.float16), (17, torch.float16)])
@pytest.mark.parametrize("name", EIGHT_BITS)
def test_tokens_are_those_of_the_logits_of_a_head_in_8_bits(
    interpreted: Callable[..., Any], name: str, rows: int, dtype: torch.dtype
) -> None:
    if name == "whole" and rows > 4:
        rows = 4
    x, plain = inputs_of(rows, WORDS_OF[name], 64, dtype)
    weight = rounded(plain.float(), QuantLayout("int8"))
    places, logits = interpreted(both, x, weight, EIGHT_BITS[name])
    check(places, logits)
    good = ~x.isnan().any(1)
    torch.testing.assert_close(logits[good].double(), x[good].double() @ weight.dequantised(torch.float64).T, atol=3e-2, rtol=1e-2)


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_rows_are_normed_before_a_head_in_8_bits(interpreted: Callable[..., Any], name: str) -> None:
    x, plain = inputs_of(2, WORDS_OF[name], 64, torch.float16)
    weight, norm = rounded(plain.float(), QuantLayout("int8")), NormWeights("layer", 1e-5, 1 + x[0] / 4, x[1] / 4)
    x = x * 5 + 3
    places, logits = interpreted(both, x, weight, EIGHT_BITS[name], norm)
    check(places, logits)
    want = norm.of(x.float().to(torch.float16)).double() @ weight.dequantised(torch.float64).T
    torch.testing.assert_close(logits.double(), want, atol=3e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("launch", [SMALL, WHOLE], ids=["blocks", "whole"])
def test_tokens_of_rows_that_are_normed_first(interpreted: Callable[..., Any], launch: Tiling, kind: NormKind) -> None:
    x, weight = inputs_of(3, 150, 64, torch.float16)
    factor, shift = 1 + x[0] / 4, x[2] / 4
    norm = NormWeights(kind, 1e-5, factor, shift if kind == "layer" else None)
    x = x * 5 + 3
    places, logits = interpreted(both, x, weight, launch, norm)
    check(places, logits)
    want = Places.on(x.device, 3)
    choose_best_torch(x, weight, want, norm)
    torch.testing.assert_close(places.logprobs, want.logprobs, atol=2e-2, rtol=0)


def test_the_reference_norms_first() -> None:
    x, weight = inputs_of(2, 50, 16, torch.float32)
    norm = NormWeights("layer", 1e-5, None, None)
    got, want = Places.on(x.device, 2), Places.on(x.device, 2)
    choose_best(x * 7 + 2, weight, got, norm=norm)
    choose_best(norm.of(x * 7 + 2), weight, want)
    assert torch.equal(got.packed, want.packed)


def few_parts(x: Tensor, weight: Tensor, launch: Tiling) -> tuple[Places, Tensor]:
    head_choice.PARTS = 8
    return both(x, weight, launch)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "launch", [pytest.param(SMALL, id="blocks"), pytest.param(replace(SINGLE, programs=500), id="whole", marks=pytest.mark.slow)]
)
def test_more_parts_than_are_looked_at_together(interpreted: Callable[..., Any], rows: int, launch: Tiling) -> None:
    x, weight = inputs_of(rows, 500, 16, torch.float32)
    check(*interpreted(few_parts, x, weight, launch))


@pytest.mark.parametrize("launch", [WHOLE, SINGLE])
def test_a_program_leaves_one_peak(launch: Tiling, interpreted: Callable[..., Any]) -> None:
    """However many tiles it goes through."""
    x, weight = inputs_of(1, 150, 64, torch.float32)
    peaks = interpreted(skinny_peaks, x, weight, launch)
    assert peaks.tops.shape == (1, -(-150 // launch.span(150, 1)))
    logits = (x @ weight.T).split(launch.span(150, 1), 1)
    torch.testing.assert_close(peaks.tops[0], torch.stack([part.amax() for part in logits]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(peaks.sums[0], torch.stack([(part - part.amax()).exp().sum() for part in logits]), atol=1e-4, rtol=1e-4)


def test_the_reference_serves_where_no_kernel_does() -> None:
    x, weight = inputs_of(4, 50, 16, torch.float32)
    got, want = Places.on(x.device, 4), Places.on(x.device, 4)
    choose_best(x, weight, got)
    choose_best_torch(x, weight, want)
    assert torch.equal(got.packed, want.packed)
    assert got.logprobs[1] == -math.inf
    choose_best_triton(x[:0], weight, Places.on(x.device, 0))
    with pytest.raises(ValueError, match=f"more than {MOST_ROWS}"):
        choose_best(torch.zeros(MOST_ROWS + 1, 16), weight, want)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 16, 32])
@pytest.mark.parametrize(("vocabulary", "width"), [(50272, 2048), (50258, 768), (250880, 1024), (1000, 50)])
def test_gpu_tokens_are_those_of_the_logits(rows: int, vocabulary: int, width: int, dtype: torch.dtype) -> None:
    """For every launch that may be chosen; and near the formula in float64."""
    x, weight = inputs_of(rows, vocabulary, width, dtype, seed=int.from_bytes(os.urandom(3), "big"))
    exact = (x.double() @ weight.double().T).log_softmax(1).nan_to_num(nan=-math.inf)
    for launch in candidates(rows, width):
        if dtype == torch.float32:
            launch = replace(launch, outputs=max(1, launch.outputs // 2)) if launch.whole else replace(launch, block=launch.block // 2)
        places, logits = both(x.cuda(), weight.cuda(), launch)
        check(places, logits)
        near = exact.gather(1, places.token_ids.cpu()[:, None]).squeeze(1)
        torch.testing.assert_close(places.logprobs.cpu().double(), near, atol=5e-2 if dtype != torch.float32 else 1e-4, rtol=0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 32])
@pytest.mark.parametrize(("vocabulary", "width"), [(50272, 768), (1000, 52)])
def test_gpu_tokens_are_those_of_the_logits_of_a_head_in_8_bits(vocabulary: int, width: int, rows: int, dtype: torch.dtype) -> None:
    """Of every launch that may be chosen, normed first or not."""
    x, plain = inputs_of(rows, vocabulary, width, dtype, seed=int.from_bytes(os.urandom(3), "big"))
    x, weight = x.cuda(), rounded(plain.float(), QuantLayout("int8")).to("cuda")
    for launch in quant_candidates(rows, weight):
        check(*both(x, weight, launch))
        check(*both(x * 5 + 3, weight, launch, NormWeights("layer", 1e-5, None, None)))
