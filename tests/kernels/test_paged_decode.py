"""One query token a sequence: the reference against the formula, the kernels against both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import paged_decode as decode
from inferometer.kernels.arrivals import arrivals
from inferometer.kernels.decode_launch import MOST_PARTS, Cut, cut
from inferometer.kernels.support import Tiles
from inferometer.model.spec import Rotary
from inferometer.nn.alibi import slopes as alibi
from inferometer.nn.rotary import RotaryEmbedding

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Around the page (16) and the keys of an iteration (16 to 128), padding in the middle.
CONTEXTS = [1, 15, 16, 17, 0, 33, 128, 150]
NEWEST = [1, 16, 17, 0, 128, 150]  # whose last key ends a page or a block, begins one, or lies within
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def query_of(rows: int, heads: int, head_size: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(rows, heads, head_size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(batch: Any, query: Tensor, scale: float, slopes: Tensor | None = None) -> Tensor:
    """float64, zeros in padding rows."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for row, key in enumerate(batch.key):
        if len(key):
            out[row] = batch.exact(query[row : row + 1], row, scale, slopes)[0]
    return out


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


SHAPES = [
    pytest.param(4, 4, 64, torch.float16, False, id="alone"),
    pytest.param(3, 3, 16, torch.float32, True, id="small-heads-alibi"),
    pytest.param(2, 2, 80, torch.float16, True, id="padded-head-alibi"),
    pytest.param(2, 2, 256, torch.float32, False, id="wide-head"),
    pytest.param(8, 2, 128, torch.float16, False, id="grouped"),
    pytest.param(6, 2, 96, torch.float32, True, id="grouped-padded-alibi"),
    pytest.param(20, 1, 64, torch.float32, False, id="one-key-head"),
    pytest.param(4, 2, 32, torch.bfloat16, False, id="bfloat16"),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_reference_is_the_formula(pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool) -> None:
    batch = pages.fill(CONTEXTS, kv_heads, head_size, dtype=dtype)
    query = query_of(len(CONTEXTS), heads, head_size, dtype)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = decode.paged_decode(
        query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts, page_size=16, scale=0.1, longest=150, slopes=slopes
    )
    close(got, exact(batch, query, 0.1, slopes), dtype)


@pytest.mark.parametrize("contexts", [[7], [5, 5], [0], [0, 0, 9], []])
def test_reference_of_few_and_of_no_rows(pages: Any, contexts: list[int]) -> None:
    batch = pages.fill(contexts, 2, 16)
    query = query_of(len(contexts), 4, 16, torch.float32)
    got = decode.paged_decode(
        query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts, page_size=16, scale=0.25, longest=9
    )
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_kernel_is_the_formula(
    pages: Any,
    interpreted: Callable[..., Any],
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    biased: bool,
    parts: int,
) -> None:
    batch = pages.fill(CONTEXTS, kv_heads, head_size, dtype=dtype)
    query = query_of(len(CONTEXTS), heads, head_size, dtype)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=0.1,
        longest=150,
        slopes=slopes,
        tiling=Tiles(block=32, warps=4, stages=1, queries=16),
        cutting=Cut(parts, least=16),
    )
    close(got, exact(batch, query, 0.1, slopes), dtype)
    assert not got[CONTEXTS.index(0)].any()


@pytest.mark.parametrize(
    ("heads", "far"), [(2, 1000), (4, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0), (4, 1000)))]
)
def test_parts_are_joined_whoever_comes_last(pages: Any, interpreted: Callable[..., Any], heads: int, far: int) -> None:
    """Many parts of a few contexts, among them those that fill no part, one, and none at all; the result does not depend on the order."""
    contexts = [0, 1, 16, 17, 300, 31]
    batch = pages.fill(contexts, 2, 16)
    query = query_of(len(contexts), heads, 16, torch.float32)
    named = {"page_size": 16, "scale": 0.25, "longest": 300, "tiling": Tiles(block=16, warps=4, stages=1, queries=16)}
    rest = query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts
    got = [interpreted(written, far, *rest, **named, cutting=Cut(parts, least=16))[0] for parts in (1, 2, 16, 32)]
    for one in got:
        close(one, exact(batch, query, 0.25), torch.float32)
    again = interpreted(written, far, *rest, **named, cutting=Cut(16, least=16))[0]
    assert torch.equal(again, got[2])


@pytest.mark.parametrize("page_size", [1, 8, 12, 64])
def test_kernel_reads_pages_of_any_size(pages: Any, interpreted: Callable[..., Any], page_size: int) -> None:
    contexts = [1, 70, 12, 13]
    batch = pages.fill(contexts, 2, 16, page_size=page_size)
    query = query_of(len(contexts), 2, 16, torch.float32)
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=page_size,
        scale=0.25,
        longest=70,
        tiling=Tiles(block=16, warps=4, stages=1),
    )
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_kernel_takes_a_view_of_a_fused_projection(pages: Any, interpreted: Callable[..., Any], kv_heads: int) -> None:
    contexts = [5, 20]
    batch = pages.fill(contexts, kv_heads, 16)
    query = query_of(2, 3 + 2 * kv_heads, 16, torch.float32)[:, :3]
    assert not query.is_contiguous()
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=0.25,
        longest=20,
    )
    assert got.is_contiguous()
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("parts", [1, 2])
def test_scores_far_from_zero_stay_finite(pages: Any, interpreted: Callable[..., Any], parts: int) -> None:
    contexts = [40, 300]
    batch = pages.fill(contexts, 2, 16)
    query = query_of(2, 2, 16, torch.float32) * 1e4
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=1.0,
        longest=300,
        cutting=Cut(parts, least=16),
    )
    close(got, exact(batch, query, 1.0), torch.float32)


class TestCut:
    """On a card of 132 processors."""

    @pytest.mark.parametrize("longest", [1, 128, 500])
    def test_short_contexts_are_one_launch(self, longest: int) -> None:
        assert cut(32, longest, 132).parts == 1

    def test_a_full_card_needs_one(self) -> None:
        assert cut(250 * 32, 1500, 132).parts == 1
        assert cut(256 * 8, 2048, 132).parts == 1

    @pytest.mark.parametrize("programs", [1, 4, 8, 32, 128, 512])
    def test_long_contexts_fill_the_card(self, programs: int) -> None:
        parts = cut(programs, 16_000, 132).parts
        assert programs * parts >= 264 or parts == MOST_PARTS

    def test_no_more_parts_than_there_are_keys_for(self) -> None:
        assert cut(1, 1024, 132).parts == 8

    def test_one_long_context_does_not_hold_up_a_full_card(self) -> None:
        """It is cut into many parts, but short contexts are not."""
        assert cut(256 * 32, 32_000, 132) == Cut(parts=16, least=2048)

    @pytest.mark.parametrize("longest", [0, 1, 511, 512, 3000, 10**6])
    @pytest.mark.parametrize("programs", [0, 1, 3, 100, 5000])
    def test_parts_are_a_power_of_two(self, programs: int, longest: int) -> None:
        parts = cut(programs, longest, 132).parts
        assert parts & (parts - 1) == 0
        assert 1 <= parts <= MOST_PARTS


def emptied(batch: Any) -> tuple[Tensor, Tensor]:
    """The newest key and value of every row (zeros for padding), which the pages lose."""
    newest = []
    for held, each in ((batch.keys, batch.key), (batch.values, batch.value)):
        rows = torch.zeros(len(each), *held.shape[1:], dtype=held.dtype)
        for row, (seat, tokens) in enumerate(zip(batch.seats.tolist(), each, strict=True)):
            if len(tokens):
                page, offset = divmod(len(tokens) - 1, batch.page_size)
                held[batch.table[seat, page] * batch.page_size + offset] = torch.nan
                rows[row] = tokens[-1]
        newest.append(rows.to(held.device))
    return newest[0], newest[1]


def interleaved(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one tensor, a row's heads side by side, as the fused projection gives them."""
    heads = torch.cat((query, key, value), 1)
    q, k, v = torch.split(heads, [query.shape[1], key.shape[1], value.shape[1]], 1)
    return q, k, v


def angles(rows: int, head_size: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    positions = torch.tensor([3, 0, 900, 17, 5, 31, 128, 7][:rows])
    cos, sin = RotaryEmbedding(Rotary(10_000.0), head_size, torch.device("cpu")).tables(positions, positions + 1, dtype)
    return cos.to(device), sin.to(device)


@pytest.mark.parametrize(("parts", "far"), [(1, 0), (4, 0), (4, 1000)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_kernel_writes_the_newest_keys_itself(
    pages: Any,
    interpreted: Callable[..., Any],
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    biased: bool,
    parts: int,
    turned: bool,
    far: int,
) -> None:
    """The same result, and the same pages, as if they had been written before."""
    batch = pages.fill(NEWEST, kv_heads, head_size, dtype=dtype)
    query, key, value = interleaved(query_of(len(NEWEST), heads, head_size, dtype), *emptied(batch))
    rotation = angles(len(NEWEST), head_size, dtype) if turned else None
    named = {"page_size": 16, "scale": 0.1, "slopes": torch.tensor(alibi(heads)) if biased else None}
    rest = batch.table, batch.seats, batch.contexts
    keys, values = batch.keys.clone(), batch.values.clone()
    fresh = decode.Fresh(key, value, rotation)
    want = decode.paged_decode_torch(query, keys, values, *rest, **named, fresh=fresh)
    if not turned:
        close(want, exact(batch, query, 0.1, named["slopes"]), dtype)
    tiles, cutting = Tiles(block=32, warps=4, stages=1, queries=16), Cut(parts, least=16)
    got, new_keys, new_values = interpreted(
        written, far, query, batch.keys, batch.values, *rest, longest=150, **named, fresh=fresh, tiling=tiles, cutting=cutting
    )
    close(got, want.double(), dtype)
    torch.testing.assert_close(new_keys, keys, equal_nan=True, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(new_values.nan_to_num(9), values.nan_to_num(9))


def written(far: int, query: Tensor, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What a call returns, and the pages as it leaves them: arguments of another process are copies. far: programs that fetch ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "AHEAD", far)
        out = decode.paged_decode_triton(query, keys, values, *rest, **named)
    assert not arrivals(query.device).any()
    return out, keys, values


def attend(batch: Any, query: Tensor, **named: Any) -> Tensor:
    return decode.paged_decode(
        query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts, page_size=batch.page_size, **named
    )


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "dtype", "biased"),
    [
        (4, 4, 16, torch.bfloat16, False),
        (3, 3, 64, torch.bfloat16, True),
        (4, 4, 80, torch.bfloat16, False),
        (2, 2, 96, torch.float16, True),
        (2, 2, 128, torch.bfloat16, False),
        (2, 2, 128, torch.float32, True),
        (2, 2, 256, torch.float16, False),
        (8, 2, 64, torch.bfloat16, True),
        (8, 2, 80, torch.float32, False),
        (8, 2, 128, torch.float16, False),
        (48, 1, 128, torch.bfloat16, False),
        (4, 2, 256, torch.bfloat16, True),
        (4, 2, 256, torch.float32, False),
    ],
)
@pytest.mark.parametrize("longest", [100, 1300], ids=["one part", "parts"])
def test_gpu_is_the_formula(pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool, longest: int) -> None:
    seed = int(torch.randint(2**31, ()))
    contexts = [longest, 1, 16, 17, 0, 65, 100]
    batch = pages.fill(contexts, kv_heads, head_size, dtype=dtype, seed=seed, device="cuda")
    query = query_of(len(contexts), heads, head_size, dtype, seed).cuda()
    slopes = torch.tensor(alibi(heads), device="cuda") if biased else None
    got = attend(batch, query, scale=head_size**-0.5, longest=longest, slopes=slopes)
    close(got, exact(batch, query, head_size**-0.5, slopes), dtype)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_gpu_graph_follows_the_contexts(pages: Any, heads: int, kv_heads: int) -> None:
    """A captured launch serves whatever contexts, tables and queries lie there when it is replayed."""
    longest, rows, dtype = 1000, 4, torch.bfloat16
    batch = pages.fill([longest] * rows, kv_heads, 64, dtype=dtype, device="cuda")
    query = query_of(rows, heads, 64, dtype).cuda()
    attend(batch, query, scale=0.125, longest=longest)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = attend(batch, query, scale=0.125, longest=longest)
    for seed, contexts in enumerate([[1, 2, 3, 4], [longest, 0, 500, 17], [0, 0, 0, 0], [999, 1000, 128, 129]]):
        new = pages.fill(contexts, kv_heads, 64, dtype=dtype, seed=seed, device="cuda")
        # The pool that was captured is the larger one: what lies behind the new one's end is unused.
        batch.keys[: len(new.keys)], batch.values[: len(new.values)] = new.keys, new.values
        batch.table[:, : new.table.shape[1]] = new.table
        batch.seats.copy_(new.seats)
        batch.contexts.copy_(new.contexts)
        query.copy_(query_of(rows, heads, 64, dtype, seed))
        graph.replay()
        close(got, exact(new, query, 0.125), dtype)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "biased"), [(4, 4, 80, True), (4, 4, 128, False), (8, 2, 64, False), (48, 1, 128, True)]
)
@pytest.mark.parametrize("longest", [100, 1300], ids=["one part", "parts"])
def test_gpu_writes_the_newest_keys_itself(
    pages: Any, heads: int, kv_heads: int, head_size: int, biased: bool, longest: int, turned: bool
) -> None:
    """In a graph, behind a launch that writes what it takes, with every key but the newest at its place long before."""
    dtype, seed = torch.bfloat16, int(torch.randint(2**31, ()))
    contexts = [longest, 1, 16, 17, 0, 65, 100]
    batch = pages.fill(contexts, kv_heads, head_size, dtype=dtype, seed=seed, device="cuda")
    newest = emptied(batch)
    source = torch.cat((query_of(len(contexts), heads, head_size, dtype, seed).cuda(), *newest), 1)
    heads_of_rows = torch.zeros_like(source)
    query, key, value = torch.split(heads_of_rows, [heads, kv_heads, kv_heads], 1)
    rotation = angles(len(contexts), head_size, dtype, "cuda") if turned else None
    named = {"page_size": 16, "scale": head_size**-0.5, "slopes": torch.tensor(alibi(heads), device="cuda") if biased else None}
    rest = batch.table, batch.seats, batch.contexts
    keys, values = batch.keys.clone(), batch.values.clone()

    def run() -> Tensor:
        heads_of_rows.copy_(source)
        return decode.paged_decode_triton(query, keys, values, *rest, **named, longest=longest, fresh=decode.Fresh(key, value, rotation))

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    first = None
    for _ in range(3):
        keys.copy_(batch.keys)
        values.copy_(batch.values)
        graph.replay()
        torch.cuda.synchronize()
        want_keys, want_values = batch.keys.clone(), batch.values.clone()
        want = decode.paged_decode_torch(query, want_keys, want_values, *rest, **named, fresh=decode.Fresh(key, value, rotation))
        close(got, want.cpu().double(), dtype)
        assert not arrivals(query.device).any()
        first = got.clone() if first is None else first
        assert torch.equal(got, first)  # parts are joined in their order, whoever came last
        torch.testing.assert_close(keys, want_keys, equal_nan=True, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(values.nan_to_num(9), want_values.nan_to_num(9))
