"""Many query tokens a sequence: the reference against the formula, the kernel against both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import ragged_prefill as prefill
from inferometer.kernels.support import Tiles
from inferometer.nn.alibi import slopes as alibi

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# (queries, context): whole prompts and chunks around the page (16) and the tile (16 or 32), one token, none, and padding.
ROWS = [(1, 1), (16, 16), (17, 17), (33, 40), (5, 70), (1, 33), (0, 4), (3, 0), (20, 64)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


class Asked:
    """The rows' queries one after another, and `behind` tokens that are no row's."""

    def __init__(self, rows: list[tuple[int, int]], heads: int, head_size: int, dtype: torch.dtype, behind: int = 0, seed: int = 1) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.bounds = [0]
        for count, _ in rows:
            self.bounds.append(self.bounds[-1] + count)
        self.query = torch.randn(self.bounds[-1] + behind, heads, head_size, generator=draw).to(dtype)
        self.starts = torch.tensor(self.bounds, dtype=torch.int32)
        self.longest = max((count for count, _ in rows), default=0)

    def exact(self, batch: Any, scale: float, slopes: Tensor | None = None) -> Tensor:
        """float64, zeros for padding."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        for row, (start, stop) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            if len(batch.key[row]):
                out[start:stop] = batch.exact(self.query[start:stop], row, scale, slopes)
        return out

    def of(self, batch: Any) -> tuple[Tensor, ...]:
        """What attention is given first: the queries, and where in the batch's pages their keys and values lie."""
        return self.query, batch.keys, batch.values, batch.table, batch.seats, self.starts, batch.contexts


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


SHAPES = [
    pytest.param(2, 2, 64, torch.float16, False, id="alone"),
    pytest.param(3, 3, 16, torch.float32, True, id="small-heads-alibi"),
    pytest.param(2, 2, 80, torch.float16, True, id="padded-head-alibi"),
    pytest.param(2, 1, 256, torch.float32, False, id="wide-head"),
    pytest.param(4, 2, 96, torch.float32, True, id="grouped-padded-alibi"),
    pytest.param(4, 1, 128, torch.float16, False, id="one-key-head"),
    pytest.param(2, 2, 32, torch.bfloat16, False, id="bfloat16"),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_reference_is_the_formula(pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool) -> None:
    batch = pages.fill([context for _, context in ROWS], kv_heads, head_size, dtype=dtype)
    asked = Asked(ROWS, heads, head_size, dtype, behind=3)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = prefill.ragged_prefill(
        *asked.of(batch),
        page_size=16,
        scale=0.1,
        longest_query=asked.longest,
        slopes=slopes,
    )
    close(got, asked.exact(batch, 0.1, slopes), dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_kernel_is_the_formula(
    pages: Any, interpreted: Callable[..., Any], heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool
) -> None:
    batch = pages.fill([context for _, context in ROWS], kv_heads, head_size, dtype=dtype)
    asked = Asked(ROWS, heads, head_size, dtype, behind=3)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = interpreted(
        prefill.ragged_prefill_triton,
        *asked.of(batch),
        page_size=16,
        scale=0.1,
        longest_query=asked.longest,
        slopes=slopes,
        tiling=Tiles(queries=32, block=16, warps=4, stages=1),
    )
    close(got, asked.exact(batch, 0.1, slopes), dtype)


@pytest.mark.parametrize(("queries", "block"), [(16, 32), (16, 16), (64, 16)])
@pytest.mark.parametrize("page_size", [1, 12, 64])
def test_kernel_reads_pages_of_any_size(pages: Any, interpreted: Callable[..., Any], page_size: int, queries: int, block: int) -> None:
    rows = [(40, 40), (7, 60), (1, 12)]
    batch = pages.fill([context for _, context in rows], 1, 16, page_size=page_size)
    asked = Asked(rows, 1, 16, torch.float32)
    got = interpreted(
        prefill.ragged_prefill_triton,
        *asked.of(batch),
        page_size=page_size,
        scale=0.25,
        longest_query=asked.longest,
        tiling=Tiles(queries=queries, block=block, warps=4, stages=1),
    )
    close(got, asked.exact(batch, 0.25), torch.float32)


def test_kernel_finds_its_row_among_many(pages: Any, interpreted: Callable[..., Any]) -> None:
    """More rows than one look takes in, of which some have no tokens."""
    rows = [(i % 40 // 39, i % 40 // 39) for i in range(130)] + [(0, 0), (2, 9)]
    batch = pages.fill([context for _, context in rows], 1, 16)
    asked = Asked(rows, 1, 16, torch.float32, behind=17)
    got = interpreted(
        prefill.ragged_prefill_triton,
        *asked.of(batch),
        page_size=16,
        scale=0.25,
        longest_query=2,
    )
    close(got, asked.exact(batch, 0.25), torch.float32)


@pytest.mark.parametrize(
    ("tokens", "prompts", "counts"),
    [
        (16, 8, [9] + [1] * 7),
        (16, 8, [1, 1, 13]),
        (64, 32, [1] * 32),
        (64, 32, [1] * 31 + [33]),
        (512, 256, [1] * 128 + [130] + [2] * 127),
    ],
)
def test_kernel_finds_all_tokens_however_a_recorded_sweep_shares_them_out(
    pages: Any, interpreted: Callable[..., Any], tokens: int, prompts: int, counts: list[int]
) -> None:
    """What is recorded says that all prompts have as many: which has how many of the tokens the device alone knows."""
    idle = prompts - len(counts)
    rows = [*((count, count) for count in counts), *[(0, 0)] * idle]
    batch = pages.fill([context for _, context in rows], 1, 16)
    asked = Asked(rows, 1, 16, torch.float32, behind=tokens - sum(counts))
    got = interpreted(
        prefill.ragged_prefill_triton,
        *asked.of(batch),
        page_size=16,
        scale=0.25,
        longest_query=tokens // prompts,
    )
    close(got, asked.exact(batch, 0.25), torch.float32)


def test_kernel_takes_a_view_of_a_fused_projection(pages: Any, interpreted: Callable[..., Any]) -> None:
    rows = [(20, 24)]
    batch = pages.fill([24], 1, 16)
    asked = Asked(rows, 5, 16, torch.float32)
    asked.query = asked.query[:, :3]
    got = interpreted(
        prefill.ragged_prefill_triton,
        *asked.of(batch),
        page_size=16,
        scale=0.25,
        longest_query=20,
    )
    assert got.is_contiguous()
    close(got, asked.exact(batch, 0.25), torch.float32)


@pytest.mark.parametrize(("longest", "queries"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, 128), (9000, 128)])
def test_few_query_tokens_take_small_tiles(monkeypatch: pytest.MonkeyPatch, longest: int, queries: int) -> None:
    monkeypatch.setattr(prefill, "capability", lambda device: (9, 0))
    assert prefill.tiles(torch.bfloat16, 128, longest, torch.device("cpu")).queries == queries


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "dtype", "biased"),
    [
        (2, 2, 16, torch.bfloat16, False),
        (3, 3, 64, torch.bfloat16, False),
        (3, 3, 64, torch.float16, True),
        (2, 2, 80, torch.bfloat16, True),
        (2, 2, 96, torch.float32, False),
        (2, 2, 128, torch.bfloat16, True),
        (2, 2, 128, torch.float32, True),
        (2, 2, 256, torch.bfloat16, False),
        (4, 2, 64, torch.float32, False),
        (6, 1, 128, torch.float16, False),
    ],
)
@pytest.mark.parametrize("rows", [[(150, 150), (1, 1), (70, 200), (3, 0), (0, 5), (128, 129)], [(9, 300), (16, 16)]], ids=["long", "short"])
def test_gpu_is_the_formula(
    pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool, rows: list[tuple[int, int]]
) -> None:
    seed = int(torch.randint(2**31, ()))
    batch = pages.fill([context for _, context in rows], kv_heads, head_size, dtype=dtype, seed=seed, device="cuda")
    asked = Asked(rows, heads, head_size, dtype, behind=5, seed=seed)
    slopes = torch.tensor(alibi(heads), device="cuda") if biased else None
    got = prefill.ragged_prefill(
        asked.query.cuda(),
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        asked.starts.cuda(),
        batch.contexts,
        page_size=16,
        scale=head_size**-0.5,
        longest_query=asked.longest,
        slopes=slopes,
    )
    close(got, asked.exact(batch, head_size**-0.5, slopes), dtype)


@pytest.mark.gpu
@needs_gpu
def test_gpu_graph_follows_the_rows(pages: Any) -> None:
    """A captured launch serves whatever rows lie there when it is replayed, up to the tokens and rows that it was made for."""
    dtype, tokens = torch.bfloat16, 200
    batch = pages.fill([160] * 4, 2, 64, dtype=dtype, device="cuda")
    query = torch.zeros(tokens, 4, 64, dtype=dtype, device="cuda")
    starts = torch.zeros(5, dtype=torch.int32, device="cuda")

    def run() -> Tensor:
        return prefill.ragged_prefill(
            query,
            batch.keys,
            batch.values,
            batch.table,
            batch.seats,
            starts,
            batch.contexts,
            page_size=16,
            scale=0.125,
            longest_query=160,
        )

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    for seed, rows in enumerate([[(160, 160), (1, 7), (30, 90), (0, 0)], [(5, 5), (0, 0), (7, 160), (100, 130)], [(0, 0)] * 4]):
        new = pages.fill([context for _, context in rows], 2, 64, dtype=dtype, seed=seed, device="cuda")
        asked = Asked(rows, 4, 64, dtype, seed=seed)
        asked.query = torch.cat((asked.query, torch.zeros(tokens - len(asked.query), 4, 64, dtype=dtype)))
        batch.keys[: len(new.keys)], batch.values[: len(new.values)] = new.keys, new.values
        batch.table[:, : new.table.shape[1]] = new.table
        batch.seats.copy_(new.seats)
        batch.contexts.copy_(new.contexts)
        query.copy_(asked.query)
        starts.copy_(asked.starts)
        graph.replay()
        close(got, asked.exact(new, 0.125), dtype)
