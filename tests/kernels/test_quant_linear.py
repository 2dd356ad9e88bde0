"""Linear maps of few rows and weights in few bits: every kernel against the formula in float64."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import quant_launch
from inferometer.kernels.arrivals import arrivals
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.quant_launch import WORD_INPUTS, quant_candidates, quant_tiling, words_possible
from inferometer.kernels.quant_linear import quant_linear_torch, quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import capability, power_of_two
from inferometer.model.spec import NormKind
from quant_cases import FORMATS, drawn_weight

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Nibbles less a zero point are rounded to the type, as a widened matrix would be.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def fenced(rows: int, width: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Between NaN, so that what is read beside it shows; with a number in the first row that is far larger than the others."""
    draw = torch.Generator().manual_seed(seed)
    room = torch.full((rows + 2, width + 16), torch.nan)
    room[1:-1, :width] = torch.randn(rows, width, generator=draw)
    room[1, width // 2] = 60.0
    return room.to(device, dtype)[1:-1, :width]


def exact(x: Tensor, weight: QuantWeight) -> Tensor:
    return x.cpu().double() @ weight.dequantised(torch.float64).cpu().T


def close(got: Tensor, want: Tensor, dtype: torch.dtype, slack: float = 1, beside: Tensor | float = 0) -> None:
    """Within the dtype's tolerance times `slack`, and within what each number may be off `beside` that."""
    assert got.dtype == dtype
    off = (got.double() - want.double()).abs()
    allowed = slack * TOLERANCE[dtype] * (1 + want.double().abs()) + beside
    assert bool((off <= allowed).all()), f"off by up to {off.max():.3g}; {int((~(off <= allowed)).sum())} of {off.numel()} by too much"


def whole(weight: QuantWeight, tile: int) -> Tiling:
    return Tiling(tile, power_of_two(weight.inputs), 4, 1, 2, whole=True)


def launches_for(weight: QuantWeight, rows: int) -> list[Tiling]:
    span = 16 * WORD_INPUTS[weight.kind]
    launches = [Tiling(64, span, 4, 2, 64), Tiling(32, 2 * span, 2, 2, 3)]
    return [*launches, whole(weight, 8), whole(weight, 2)] if rows <= 4 else launches


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


IN_BYTES = (Tiling(64, 128, 4, 2, 64, in_bytes=True), Tiling(32, 128, 2, 2, 3, in_bytes=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_kernel_in_bytes_is_the_formula(interpreted: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    """Rows are split into two bytes: what is lost is below what the type holds, also beside a number that is far larger."""
    for rows, inputs, launch in ((6, 328, IN_BYTES[0]), (17, 256, IN_BYTES[1]), (5, 8, IN_BYTES[0]), (1, 72, IN_BYTES[1])):
        weight, x = drawn_weight(21, inputs, **FORMATS[name]), fenced(rows, inputs, dtype, 2)
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(x, weight), dtype)


READIED = {
    "int8": Tiling(64, 128, 4, 2, 64, in_bytes=True, readied=True),
    "fp8": Tiling(32, 128, 2, 2, 3, in_bytes=True, readied=True),
    "int4 g64": Tiling(64, 256, 4, 2, 64, readied=True),
    "int4 g64 symmetric": Tiling(32, 128, 2, 2, 3, readied=True),
    "int4 g128": Tiling(64, 256, 4, 2, 3, readied=True),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", READIED)
def test_kernel_of_readied_rows_is_the_formula(interpreted: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    """Also where the last group is short, the last iteration is none of whole groups, or there is no row of some that are padded."""
    for rows, inputs in ((6, 352), (17, 256), (5, 32), (1, 736), (5, 1024)):
        weight, x = drawn_weight(21, inputs, **FORMATS[name]), fenced(rows, inputs, dtype, 2)
        residual = fenced(rows, 21, dtype, 3)
        got = interpreted(quant_linear_triton, x, weight, residual=residual, launch=READIED[name])
        close(got, exact(x, weight) + residual.double(), dtype)


def rounded_by_blocks(x: Tensor, kind: str, block: int) -> Tensor:
    """Each row's blocks of inputs in numbers of 8 bits: whole ones up to 127, or e4m3 of numbers whose largest is from 128 to 256."""
    wide = x.double()
    out = torch.empty_like(wide)
    for first in range(0, x.shape[1], block):
        part = wide[:, first : first + block]
        largest = part.abs().amax(1, keepdim=True)
        scale = largest / 127 if kind == "int8" else (largest.log2().floor() - 7).exp2()
        levels = part / scale.masked_fill(largest == 0, 1.0)
        out[:, first : first + block] = (levels.round() if kind == "int8" else levels.float().to(torch.float8_e4m3fn).double()) * scale
    return out


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


def test_words_of_one_thread_begin_where_it_may_read_them() -> None:
    """Two or four at a time: else such a launch would read beside them."""
    for name, inputs, served in (("int4 g64", 336, True), ("int4 g64", 328, False), ("int4 g128", 320, True), ("int4 g128", 336, False)):
        launches = quant_candidates(16, drawn_weight(7, inputs, **FORMATS[name]))
        assert any(launch.readied for launch in launches) == served
    assert not any(launch.readied for launch in quant_candidates(16, drawn_weight(7, 320, **FORMATS["int4 g32"])))


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


@pytest.mark.parametrize("name", ["fp8", "int4 g32", "int4 all"])
@pytest.mark.parametrize("inputs", [8, 40, 72, 264])
def test_any_number_of_words(interpreted: Callable[..., Any], name: str, inputs: int) -> None:
    weight, x = drawn_weight(7, inputs, **FORMATS[name]), fenced(5, inputs, torch.float32, 3)
    for launch in launches_for(weight, 5):
        close(interpreted(quant_linear_triton, x, weight, launch=launch), exact(x, weight), torch.float32)


@pytest.mark.parametrize(("name", "inputs"), [("fp8", 33), ("int8", 50), ("int4 g32", 331), ("int4 all", 4)])
def test_rows_that_are_no_whole_words_are_left_to_others(name: str, inputs: int) -> None:
    weight = drawn_weight(7, inputs, **FORMATS[name])
    assert not words_possible(weight)
    assert quant_candidates(1, weight) == quant_candidates(16, weight) == ()
    for launch in (None, whole(weight, 2)):
        with pytest.raises(ValueError, match=r"whole words|no launch"):
            quant_linear_triton(fenced(1, inputs, torch.float32, 3), weight, launch=launch)


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


class TestTable:
    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("inputs", [8, 64, 768, 5120, 16384])
    @pytest.mark.parametrize("rows", [1, 3, 16])
    def test_something_serves_everything(self, rows: int, inputs: int, name: str) -> None:
        weight = drawn_weight(2, inputs, **FORMATS[name])
        launches = quant_candidates(rows, weight)
        assert quant_tiling(rows, weight) in launches
        assert len(set(launches)) == len(launches) > 1
        for launch in launches:
            assert all(size & (size - 1) == 0 for size in (launch.outputs, launch.block, launch.warps))
            assert launch.programs > 0
            assert not launch.whole or rows <= 4
            assert not launch.whole or launch.block >= inputs

    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("rows", [1, 2, 3, 4])
    def test_four_rows_are_not_held_whole_unless_that_was_measured(self, rows: int, name: str) -> None:
        """Nor are two and e4m3, whose rows are held in four bytes an input."""
        weight = drawn_weight(2, 4096, **FORMATS[name])
        first = quant_tiling(rows, weight)
        assert first is not None
        assert first.whole == (rows == 1 or (rows == 2 and weight.kind != "fp8"))

    @pytest.mark.parametrize("name", ["int8", "fp8"])
    @pytest.mark.parametrize("rows", [5, 16, 32])
    def test_what_is_fetched_ahead_fits_into_a_processor(self, monkeypatch: pytest.MonkeyPatch, rows: int, name: str) -> None:
        """Of 32 rows in three e4m3 numbers each, six stages of 256 inputs do not."""
        monkeypatch.setattr(quant_launch, "capability", lambda device: (9, 0))
        monkeypatch.setattr(quant_launch, "may_be_readied", lambda weight: True)
        launches = [each for each in quant_candidates(rows, drawn_weight(512, 4096, **FORMATS[name])) if each.readied]
        assert max(each.stages for each in launches) == (4 if (rows, name) == (32, "fp8") else 6)
        numbers = 3 if name == "fp8" else 2
        assert all(each.stages * each.block * (each.outputs + numbers * max(16, rows)) <= 227 * 1024 for each in launches)

    @pytest.mark.parametrize("rows", [5, 16, 32])
    def test_rows_are_not_readied_in_several_floats_each(self, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
        """One, where the format rounds activations, came out right on a card."""
        monkeypatch.setattr(quant_launch, "capability", lambda device: (9, 0))
        wide = drawn_weight(512, 256, "fp8")
        assert not any(launch.readied for launch in quant_candidates(rows, wide))
        assert any(launch.readied for launch in quant_candidates(rows, replace(wide, activations="fp8")))

    @pytest.mark.parametrize(("card", "rows", "readied"), [((9, 0), 16, True), ((9, 0), 32, False), ((8, 0), 16, False)])
    def test_rows_are_readied_first_where_that_was_measured(
        self, monkeypatch: pytest.MonkeyPatch, card: tuple[int, int], rows: int, readied: bool
    ) -> None:
        """Not of maps that are as wide as they are long, nor where activations are one number."""
        monkeypatch.setattr(quant_launch, "capability", lambda device: card)
        wide, square = drawn_weight(512, 256, "int8"), drawn_weight(256, 256, "int8")
        rounding = replace(wide, activations="int8")
        chosen = [quant_tiling(rows, each) for each in (wide, drawn_weight(8, 256, **FORMATS["int4 g64"]), square, rounding)]
        assert [launch is not None and launch.readied for launch in chosen] == [readied, readied, False, False]


GPU_SHAPES = [(4096, 16384), (1000, 4096), (96, 80), (33, 56), (21, 328)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("outputs", "inputs"), GPU_SHAPES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("rows", "dtype"), [(1, torch.bfloat16), (4, torch.float16), (7, torch.bfloat16), (32, torch.float16), (50, torch.bfloat16)]
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
@pytest.mark.parametrize(("rows", "dtype"), [(7, torch.bfloat16), (16, torch.float16), (32, torch.float16)])
def test_gpu_readies_rows_in_several_floats_each(monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype) -> None:
    """Launches that do not serve: once this has passed on a card they may."""
    monkeypatch.setattr(quant_launch, "may_be_readied", lambda weight: True)
    weight, x = drawn_weight(1000, 4096, "fp8", seed=rows, device="cuda"), fenced(rows, 4096, dtype, 1, "cuda")
    launches = [launch for launch in quant_candidates(rows, weight) if launch.readied]
    for launch in launches:
        close(quant_linear_triton(x, weight, launch=launch), x.double() @ weight.dequantised(torch.float64).T, dtype, slack=3)
    assert launches or capability(weight.device) < (9, 0)


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
