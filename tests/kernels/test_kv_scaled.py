"""Keys and values in 8 bits: how they are written and how kernels read them, against the references and the formula in float64."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import kv_scaled
from inferometer.kernels.eight_bit_floats import float_bits
from inferometer.kernels.kv_scaled import KV_LARGEST, PageScales, scaled_write_torch, scaled_write_triton, wide_rows
from inferometer.kernels.paged_decode import paged_decode_torch, paged_decode_triton
from inferometer.kernels.ragged_prefill import ragged_prefill_torch, ragged_prefill_triton
from inferometer.kernels.support import kernel, tl

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = tuple(KV_LARGEST)
PAGE = 16


@kernel()
def _bits(x: Any, out: Any) -> None:
    i = tl.arange(0, 8192)
    tl.store(out + i, float_bits(tl.load(x + i)).to(tl.uint8))


def bits_of(x: Tensor) -> Tensor:
    out = torch.zeros(8192, dtype=torch.uint8)
    _bits.launch((1,), x, out)
    return out


def test_floats_of_eight_bits_are_the_nearest(interpreted: Callable[..., Any]) -> None:
    draw = torch.Generator().manual_seed(1)
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()].sort().values
    halfway = (every[1:] + every[:-1]) / 2
    drawn = torch.randn(4000, generator=draw) * torch.randn(4000, generator=draw).exp() * 5
    edges = torch.tensor([0.0, -0.0, torch.nan, 2.0**-10, -(2.0**-10), 3 * 2.0**-11])
    x = torch.cat([every, halfway, halfway.nextafter(every[1:]), halfway.nextafter(every[:-1]), drawn, edges]).clamp(-448, 448)
    x = torch.nn.functional.pad(x, (0, 8192 - len(x)))
    got, want = interpreted(bits_of, x), x.to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(got[~x.isnan()], want[~x.isnan()])
    assert got[x.isnan()].tolist() == [127]


class Written:
    """A layer's pages, written by one way or another."""

    def __init__(self, pages: int, heads: int, size: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self.keys, self.values = (torch.zeros(pages * PAGE, heads, size, dtype=dtype, device=device) for _ in range(2))
        self.scales = PageScales(*(torch.zeros(pages, heads, device=device) for _ in range(2)))

    def write(self, key: Tensor, value: Tensor, places: Tensor) -> None:
        scaled_write_torch(key, self.keys, self.scales.keys, places, PAGE)
        scaled_write_torch(value, self.values, self.scales.values, places, PAGE)

    def launch(self, key: Tensor, value: Tensor, places: Tensor) -> Written:
        scaled_write_triton(key, value, self.keys, self.values, self.scales, places, PAGE)
        return self

    def equals(self, other: Written) -> None:
        for got, want in ((self.scales.keys, other.scales.keys), (self.scales.values, other.scales.values)):
            torch.testing.assert_close(got, want, atol=0, rtol=3e-7)
        for got, want in ((self.keys, other.keys), (self.values, other.values)):
            # A division that is off by its last bit may round a tie to the other side.
            assert float((got.float() != want.float()).float().mean()) < 2e-3


def launched(pages: Written, key: Tensor, value: Tensor, places: Tensor, few: int) -> Written:
    kv_scaled.FEW_TOKENS = few
    return pages.launch(key, value, places)


def sweeps(pages: int, heads: int, size: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> list[tuple[Tensor, Tensor, Tensor]]:
    """Keys, values and places of sweeps of two sequences, of sizes that grow and shrink, with padding in between; then of one that takes
    the other's pages."""
    draw = torch.Generator().manual_seed(seed)
    tables = torch.randperm(pages, generator=draw).view(2, -1)
    lengths, found = [0, 0], []
    for number in range(10):
        places: list[int] = []
        for sequence in range(2):
            count = int(torch.randint(1, 9, (1,), generator=draw)) if number < 8 else 1
            positions = range(lengths[sequence], lengths[sequence] + count)
            owner = sequence if number < 9 else 1 - sequence
            places += [int(tables[owner, p // PAGE]) * PAGE + p % PAGE for p in (positions if number < 9 else range(count))]
            places += [-1] * int(torch.randint(0, 3, (1,), generator=draw))
            lengths[sequence] += count
        shape = len(places), heads, size
        both = (torch.randn(shape, generator=draw) * torch.randn(len(places), 1, 1, generator=draw).exp() for _ in range(2))
        key, value = (t.to(device, dtype) for t in both)
        found.append((key, value, torch.tensor(places, device=device)))
    return found


@pytest.mark.parametrize("few", [0, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_writes_as_the_reference(interpreted: Callable[..., Any], dtype: torch.dtype, few: int) -> None:
    got, want = Written(10, 3, 20, dtype), Written(10, 3, 20, dtype)
    for key, value, places in sweeps(10, 3, 20, torch.float32, 1):
        want.write(key, value, places)
        got = interpreted(launched, got, key, value, places, few)
        got.equals(want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_near_what_was_written_whatever_came_later(dtype: torch.dtype) -> None:
    """And a page that begins anew has a scale of its own."""
    pages = Written(2, 1, 8, dtype)
    for position in range(PAGE):
        pages.write(*(torch.full((1, 1, 8), 1.0 + position) for _ in range(2)), torch.tensor([position]))
    held = wide_rows(pages.keys, pages.scales.keys, torch.arange(PAGE), PAGE, torch.float32)[:, 0, 0]
    step = 16.0 / 127 if dtype == torch.int8 else 0.0
    assert ((held - torch.arange(1.0, PAGE + 1)).abs() <= torch.maximum(torch.tensor(step), torch.arange(1.0, PAGE + 1) / 16)).all()
    pages.write(*(torch.full((1, 1, 8), 1e-3) for _ in range(2)), torch.tensor([0]))
    assert float(pages.scales.keys[0, 0]) < 1e-4


def test_what_is_no_number_is_none_in_its_page_and_head_alone(interpreted: Callable[..., Any]) -> None:
    for dtype in DTYPES:
        key = torch.ones(2, 2, 8)
        key[0, 1, 3] = torch.nan
        got = interpreted(launched, Written(2, 2, 8, dtype), key, torch.ones(2, 2, 8), torch.tensor([0, PAGE]), 1024)
        assert got.scales.keys.isnan().tolist() == [[False, True], [False, False]]
        assert not got.scales.values.isnan().any()


def narrowed(pages: Any, dtype: torch.dtype) -> Written:
    """The same sequences in 8 bits; pages.key and pages.value become what is stored."""
    count, heads, size = pages.keys.shape
    found = Written(count // PAGE, heads, size, dtype)
    for row, (key, value) in enumerate(zip(pages.key, pages.value, strict=True)):
        position = torch.arange(len(key))
        own = pages.table.cpu()[pages.seats.cpu()[row].long()].long()
        places = own[position // PAGE] * PAGE + position % PAGE
        found.write(key.float() * 2, value.float(), places)
        pages.key[row] = wide_rows(found.keys, found.scales.keys, places, PAGE, torch.float32)
        pages.value[row] = wide_rows(found.values, found.scales.values, places, PAGE, torch.float32)
    device = pages.keys.device
    found.keys, found.values = found.keys.to(device), found.values.to(device)
    found.scales = PageScales(found.scales.keys.to(device), found.scales.values.to(device))
    return found


def decoded(run: Callable[..., Any], query: Tensor, held: Written, pages: Any, longest: int, slopes: Tensor | None) -> Tensor:
    more = {"longest": longest} if run is not paged_decode_torch else {}
    return run(
        query, held.keys, held.values, pages.table, pages.seats, pages.contexts, page_size=PAGE, scale=0.2, slopes=slopes,
        scales=held.scales, **more,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(2, 2, 20), (4, 2, 16), (1, 1, 64)])
def test_decode_reads_what_is_stored(
    interpreted: Callable[..., Any], pages: Any, dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> None:
    pages = pages.fill([37, 5, 70, 1], kv_heads, size)
    held, query = narrowed(pages, dtype), torch.randn(4, heads, size, generator=torch.Generator().manual_seed(2))
    slopes = torch.rand(heads, generator=torch.Generator().manual_seed(3)) if heads == 2 else None
    for longest in (70, 600):
        found = [interpreted(decoded, paged_decode_triton, query, held, pages, longest, slopes)]
        found.append(decoded(paged_decode_torch, query, held, pages, longest, slopes))
        for row in range(4):
            want = pages.exact(query[row : row + 1], row, 0.2, slopes)[0]
            for got in found:
                torch.testing.assert_close(got[row].double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(2, 2, 20), (4, 2, 16)])
def test_prefill_reads_what_is_stored(
    interpreted: Callable[..., Any], pages: Any, dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> None:
    pages = pages.fill([37, 5, 40], kv_heads, size)
    held, starts = narrowed(pages, dtype), torch.tensor([0, 7, 12, 42], dtype=torch.int32)
    query = torch.randn(42, heads, size, generator=torch.Generator().manual_seed(2))
    common = query, held.keys, held.values, pages.table, pages.seats, starts, pages.contexts
    got = interpreted(ragged_prefill_triton, *common, page_size=PAGE, scale=0.2, longest_query=30, scales=held.scales)
    reference = ragged_prefill_torch(*common, page_size=PAGE, scale=0.2, scales=held.scales)
    for row, (start, stop) in enumerate(pairwise(starts.tolist())):
        want = pages.exact(query[start:stop], row, 0.2)
        torch.testing.assert_close(got[start:stop].double(), want, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(reference[start:stop].double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("few", [0, 1024])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_writes_as_the_reference(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, size: int, few: int) -> None:
    monkeypatch.setattr(kv_scaled, "FEW_TOKENS", few)
    got, want = Written(10, 4, size, dtype, "cuda"), Written(10, 4, size, dtype, "cuda")
    for key, value, places in sweeps(10, 4, size, torch.bfloat16, int.from_bytes(os.urandom(3), "big"), "cuda"):
        want.write(key, value, places)
        got.launch(key, value, places).equals(want)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(8, 8, 128), (8, 8, 80), (8, 2, 128), (4, 4, 64)])
def test_gpu_reads_what_is_stored(pages: Any, dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    contexts = [1900, 1, 16, 700, 33]
    pages = pages.fill(contexts, kv_heads, size, device="cuda", seed=int.from_bytes(os.urandom(3), "big"))
    held = narrowed(pages, dtype)
    query = torch.randn(len(contexts), heads, size, device="cuda").bfloat16()
    for longest in (1900, 4096):
        got = decoded(paged_decode_triton, query, held, pages, longest, None)
        for row in range(len(contexts)):
            want = pages.exact(query[row : row + 1], row, 0.2)[0]
            torch.testing.assert_close(got[row].cpu().double(), want, atol=1e-2, rtol=1e-2)
    starts = torch.tensor([0, 1000, 1001, 1017, 1019, 1052], dtype=torch.int32, device="cuda")
    query = torch.randn(1052, heads, size, device="cuda").bfloat16()
    common = query, held.keys, held.values, pages.table, pages.seats, starts, pages.contexts
    got = ragged_prefill_triton(*common, page_size=PAGE, scale=0.2, longest_query=1000, scales=held.scales)
    # In bfloat16 the reference would round scale * number, which for int8 moves a score by more than the kernel does.
    want = ragged_prefill_torch(query.float(), *common[1:], page_size=PAGE, scale=0.2, scales=held.scales)
    torch.testing.assert_close(got.float(), want, atol=1e-2, rtol=1e-2)
