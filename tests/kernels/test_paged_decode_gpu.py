"""One query token a sequence on a GPU: every path against the formula, and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import paged_decode as decode
from inferometer.kernels.arrivals import arrivals
from inferometer.nn.alibi import slopes as alibi
from paged_queries import TOLERANCE, angles, close, emptied, exact, query_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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
