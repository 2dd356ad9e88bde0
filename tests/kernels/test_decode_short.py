"""Attention to short contexts, left in parts, and the map that joins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.decode_short import MOST_PARTS, decode_parts, keys_of, serves
from inferometer.kernels.finish import linear_torch
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.paged_decode import Fresh, paged_decode_torch
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.quant_linear import quant_linear_joined
from inferometer.kernels.rotary_write import rotate
from inferometer.kernels.skinny import skinny_joined
from inferometer.kernels.skinny_launch import Tiling, candidates
from quant_cases import FORMATS, drawn_weight

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}
SIZES = [(4, 32), (2, 64), (1, 128)]


class Case:
    """One token that asks, and pages that hold all that it sees but its own key and value."""

    def __init__(self, pages: Any, context: int, heads: int, head_size: int, dtype: torch.dtype, *, biased: bool, turned: bool) -> None:
        seed = context + heads
        batch = pages.fill([context], heads, head_size, dtype=dtype, seed=seed)
        draw = torch.Generator().manual_seed(seed)
        self.source = torch.randn(1, 3 * heads, head_size, generator=draw).to(dtype)
        self.keys, self.values, self.table, self.seats, self.contexts = batch.keys, batch.values, batch.table, batch.seats, batch.contexts
        self.scale = head_size**-0.5
        self.slopes = torch.rand(heads, generator=draw) if biased else None
        self.rotation: tuple[Tensor, Tensor] | None = None
        if turned:
            angle = torch.rand(1, 1, head_size // 2, generator=draw).repeat(1, 1, 2)
            sign = torch.ones(head_size)
            sign[: head_size // 2] = -1
            self.rotation = angle.cos().to(dtype), (angle.sin() * sign).to(dtype)
        if context:
            # Nothing but this token's own launch may have put its key there.
            place = int(batch.table[batch.seats[0], (context - 1) // 16]) * 16 + (context - 1) % 16
            self.keys[place] = self.values[place] = torch.nan

    def to(self, device: str) -> Case:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        if self.rotation is not None:
            self.rotation = self.rotation[0].to(device), self.rotation[1].to(device)
        return self

    def call(self, attend: Callable[..., Any], **named: Any) -> tuple[Any, Tensor, Tensor]:
        """What attending returns, and the pages as it leaves them."""
        heads = self.source.shape[1] // 3
        query, key, value = torch.split(self.source, [heads] * 3, 1)
        keys, values = self.keys.clone(), self.values.clone()
        found = attend(
            query, keys, values, self.table, self.seats, self.contexts, page_size=16, scale=self.scale, slopes=self.slopes,
            fresh=Fresh(key, value, self.rotation), **named,
        )  # fmt: skip
        return found, keys, values


def in_parts(case: Case, longest: int) -> tuple[HeadParts, Tensor, Tensor]:
    found, keys, values = case.call(decode_parts, longest=longest)
    return found, keys, values


def check(case: Case, got: HeadParts, keys: Tensor, values: Tensor) -> Tensor:
    """Against the reference, which is returned: (1, heads * head_size)."""
    want, want_keys, want_values = case.call(paged_decode_torch)
    dtype = case.source.dtype
    bound = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    joined = got.joined()
    assert joined.dtype == dtype
    torch.testing.assert_close(joined.float(), want.flatten(1).float(), **bound)
    torch.testing.assert_close(keys, want_keys, equal_nan=True, **bound)
    assert torch.equal(values.nan_to_num(9), want_values.nan_to_num(9))
    flat: Tensor = want.flatten(1)
    return flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "head_size"), SIZES)
@pytest.mark.parametrize("context", [0, 1, 16, 63, 64, 65, 128, 129, 187, 300])
def test_parts_are_attention(
    interpreted: Callable[..., Any], pages: Any, context: int, heads: int, head_size: int, dtype: torch.dtype
) -> None:
    case = Case(pages, context, heads, head_size, dtype, biased=False, turned=False)
    check(case, *interpreted(in_parts, case, 304))


@pytest.mark.parametrize(("biased", "turned"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("context", [1, 64, 100])
def test_slopes_and_rotation(interpreted: Callable[..., Any], pages: Any, context: int, biased: bool, turned: bool) -> None:
    case = Case(pages, context, 2, 64, torch.float32, biased=biased, turned=turned)
    check(case, *interpreted(in_parts, case, 200))


def test_rotation_turns() -> None:
    """The references agree on what a rotation is: else the test above would show nothing."""
    angle = torch.tensor([[[0.3, 0.3]]])
    x = torch.tensor([[[1.0, 0.0]]])
    torch.testing.assert_close(rotate(x, angle.cos(), angle.sin() * torch.tensor([-1.0, 1.0])), torch.tensor([[[0.955336, 0.295520]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "head_size"), SIZES)
@pytest.mark.parametrize("context", [0, 1, 65, 187, 300])
def test_a_map_joins_them(
    interpreted: Callable[..., Any], pages: Any, context: int, heads: int, head_size: int, dtype: torch.dtype
) -> None:
    case = Case(pages, context, heads, head_size, dtype, biased=True, turned=False)
    found, keys, values = interpreted(in_parts, case, 304)
    # What lies in parts that are not there must not matter.
    empty = -(-context // found.keys)
    found.partial[:, empty:], found.mass[:, empty:] = torch.nan, torch.nan
    want = check(case, found, keys, values)
    inputs, outputs = heads * head_size, 21
    draw = torch.Generator().manual_seed(0)
    weight, bias, residual = (torch.randn(*size, generator=draw).to(dtype) for size in ((outputs, inputs), (outputs,), (1, outputs)))
    weight /= inputs**0.5
    launch = Tiling(outputs=8, block=inputs, warps=4, stages=1, programs=3, whole=True)
    for shift in (bias, None):
        got = interpreted(skinny_joined, found, weight, shift, residual, launch)
        expected = linear_torch(want, weight, shift, residual=residual)
        torch.testing.assert_close(got.float(), expected.float(), atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["int8", "fp8", "int4 g64"])
@pytest.mark.parametrize(("context", "heads", "head_size"), [(1, 4, 32), (187, 2, 64), (300, 1, 128)])
def test_a_map_in_few_bits_joins_them(
    interpreted: Callable[..., Any], pages: Any, context: int, heads: int, head_size: int, name: str
) -> None:
    dtype = torch.float16
    case = Case(pages, context, heads, head_size, dtype, biased=False, turned=False)
    found, keys, values = interpreted(in_parts, case, 304)
    empty = -(-context // found.keys)
    found.partial[:, empty:], found.mass[:, empty:] = torch.nan, torch.nan
    want = check(case, found, keys, values)
    weight = drawn_weight(21, heads * head_size, **FORMATS[name])
    draw = torch.Generator().manual_seed(0)
    bias, residual = (torch.randn(*size, generator=draw).to(dtype) for size in ((21,), (1, 21)))
    launch = Tiling(outputs=8, block=heads * head_size, warps=4, stages=1, programs=3, whole=True)
    for shift in (bias, None):
        got = interpreted(quant_linear_joined, found, weight, shift, residual, launch)
        expected = linear_torch(want.double(), weight.dequantised(torch.float64), None if shift is None else shift.double())
        torch.testing.assert_close(got.double(), expected + residual, atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])


class TestServes:
    """On the CPU, which counts as one processor."""

    CPU = torch.device("cpu")

    def test_one_token_of_a_few_heads(self) -> None:
        assert serves(1, 2, 2, 64, keys_of(64), self.CPU)

    @pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(4, 2, 64), (3, 3, 64), (2, 2, 80), (1, 1, 256), (1, 1, 8)])
    def test_not_what_is_no_power_of_two_or_shares_keys(self, heads: int, kv_heads: int, head_size: int) -> None:
        assert not serves(1, heads, kv_heads, head_size, 64, self.CPU)

    def test_not_what_would_wait_for_room(self) -> None:
        assert serves(1, 2, 2, 64, 100, self.CPU)
        assert not serves(1, 4, 4, 64, 100, self.CPU)
        assert not serves(2, 2, 2, 64, 100, self.CPU)

    def test_not_long_contexts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("inferometer.kernels.decode_short.processors", lambda device: 132)
        assert serves(1, 16, 16, 128, MOST_PARTS * keys_of(128), self.CPU)
        assert not serves(1, 16, 16, 128, MOST_PARTS * keys_of(128) + 1, self.CPU)

    def test_not_more_than_is_worth_reading_by_every_program_that_joins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("inferometer.kernels.decode_short.processors", lambda device: 132)
        assert serves(1, 32, 32, 128, 8 * keys_of(128), self.CPU)
        assert not serves(1, 32, 32, 128, 8 * keys_of(128) + 1, self.CPU)

    @pytest.mark.parametrize("head_size", [16, 32, 64, 128])
    def test_what_a_program_holds_fits_its_registers(self, head_size: int) -> None:
        assert keys_of(head_size) >= 16
        assert 2 * 2 * keys_of(head_size) * head_size <= 32 * 1024


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "head_size"), [(16, 128), (32, 64), (4, 16), (32, 128)])
@pytest.mark.parametrize("context", [0, 1, 65, 187, 300])
@pytest.mark.parametrize("turned", [False, True])
def test_gpu_is_attention_and_the_map(pages: Any, context: int, heads: int, head_size: int, dtype: torch.dtype, turned: bool) -> None:
    """In a graph, behind a launch that writes what it takes."""
    case = Case(pages, context, heads, head_size, dtype, biased=not turned, turned=turned).to("cuda")
    inputs, outputs = heads * head_size, 500
    weight, bias = torch.randn(outputs, inputs, device="cuda", dtype=dtype) / inputs**0.5, torch.randn(outputs, device="cuda", dtype=dtype)
    residual = torch.randn(1, outputs, device="cuda", dtype=dtype)
    source, room = case.source, torch.zeros_like(case.source)
    for launch in candidates(1, inputs):

        def run(launch: Tiling = launch) -> tuple[Tensor, HeadParts, Tensor, Tensor]:
            room.copy_(source)
            case.source = room
            found, keys, values = in_parts(case, 304)
            return skinny_joined(found, weight, bias, residual, launch), found, keys, values

        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got, found, keys, values = run()
        for _ in range(3):
            room.zero_()
            graph.replay()
            torch.cuda.synchronize()
            want = check(case, found, keys, values)
            expected = linear_torch(want, weight, bias, residual=residual)
            torch.testing.assert_close(got.float(), expected.float(), atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["int8", "fp8", "int4 g64"])
@pytest.mark.parametrize(("heads", "head_size"), [(32, 64), (32, 128)])
@pytest.mark.parametrize("context", [1, 65, 300])
def test_gpu_is_attention_and_the_map_in_few_bits(pages: Any, context: int, heads: int, head_size: int, name: str) -> None:
    """In a graph, behind a launch that writes what it takes."""
    dtype = torch.bfloat16
    case = Case(pages, context, heads, head_size, dtype, biased=False, turned=False).to("cuda")
    inputs, outputs = heads * head_size, 500
    weight = drawn_weight(outputs, inputs, **FORMATS[name], seed=context, device="cuda")
    bias, residual = torch.randn(outputs, device="cuda", dtype=dtype), torch.randn(1, outputs, device="cuda", dtype=dtype)
    source, room = case.source, torch.zeros_like(case.source)
    for launch in (one for one in quant_candidates(1, weight) if one.whole):

        def run(launch: Tiling = launch) -> tuple[Tensor, HeadParts, Tensor, Tensor]:
            room.copy_(source)
            case.source = room
            found, keys, values = in_parts(case, 304)
            return quant_linear_joined(found, weight, bias, residual, launch), found, keys, values

        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got, found, keys, values = run()
        for _ in range(3):
            room.zero_()
            graph.replay()
            torch.cuda.synchronize()
            want = check(case, found, keys, values).double()
            expected = want @ weight.dequantised(torch.float64).T + bias + residual
            torch.testing.assert_close(got.double(), expected, atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])
