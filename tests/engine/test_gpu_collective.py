"""Ranks on GPUs: everything that they say to each other beside what they would say through the host."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from sum_bounds import assert_within, norm_error, stream_error, sum_error

PATIENCE_S = 180

pytestmark = pytest.mark.gpu

HIDDEN = 512
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = (1, 3, 40, 700, 70000)
"""By a mailbox, by several rows a program, by rows of their own, in one round and in several."""


def weights(device: torch.device, dtype: torch.dtype) -> NormWeights:
    weight, bias = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    return NormWeights("layer", 1e-5, weight, bias)


def part(rank: int, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(100 * rows + rank)).to(dtype)


def _rank(rank: int, size: int, store: str, work: Callable[..., None], answers: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "4"
    import torch.distributed as dist

    from inferometer.nn.gloo_collective import GlooCollective

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    shared = dist.FileStore(store, size)
    dist.init_process_group("gloo", store=dist.PrefixStore("host", shared), rank=rank, world_size=size)
    work(GlooCollective(), dist.PrefixStore("gpu", shared), device)
    torch.cuda.synchronize()
    answers.put(rank)


def run(size: int, work: Callable[..., None], folder: Path) -> None:
    """work(host, store, device) on each of so many ranks. A rank that fails or hangs ends all."""
    spawned = multiprocessing.get_context("spawn")
    answers = spawned.SimpleQueue()
    arguments = size, str(folder / "store"), work, answers
    ranks = [spawned.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(size)]
    for each in ranks:
        each.start()
    try:
        for each in ranks:
            each.join(PATIENCE_S)
        assert [each.exitcode for each in ranks] == [0] * size
    finally:
        for each in ranks:
            each.kill()


def same_everywhere(host: Any, tensor: Tensor) -> bool:
    own = tensor.cpu().contiguous().view(torch.uint8).view(1, -1)
    return bool((host.gather(own).view(host.size, -1) == own).all())


def sums(host: Any, store: Any, device: torch.device) -> None:
    from inferometer.engine.parallel.gpu_collective import GpuCollective
    from inferometer.engine.parallel.sum_choice import SIZES, WAYS
    from inferometer.kernels.rank_sum import rank_sum_torch

    ranks = GpuCollective(host, store, device, invariant=False, limit=timedelta(seconds=60))
    assert ranks.linked
    for choice in ({}, *(dict.fromkeys(SIZES, way) for way in ("rows", "pairs", "around", "nccl"))):
        ranks.choice = choice
        for dtype in DTYPES:
            norm = weights(device, dtype)
            for rows in ROWS:
                parts = torch.stack([part(rank, rows, dtype) for rank in range(host.size)]).to(device)
                wanted = rank_sum_torch(parts)
                x = parts[host.rank].clone()
                residual = part(9, rows, dtype).to(device)
                whole = residual + wanted
                # NCCL's order of more than two is its own, and it rounds after each.
                free = ranks.way(x) == "nccl" and host.size > 2
                off, apart = (sum_error(parts), stream_error(parts, whole)) if free else (0.0, 0.0)
                assert_within(ranks.all_reduce(x), wanted, off)
                normed, bound = norm.of(whole.clone()), norm_error(whole, apart, norm)
                for found in (
                    ranks.all_reduce_norm(parts[host.rank].clone(), residual.clone(), norm),
                    ranks.sum_of(lambda own: own * 1, parts[host.rank], residual, norm),
                ):
                    assert_within(found, normed, bound)
                    assert same_everywhere(host, found)
                assert_within(ranks.completed(residual), whole, apart)
    assert all(ranks.able(way, torch.zeros(1, 8, device=device)) for way in WAYS)


def gathers(host: Any, store: Any, device: torch.device) -> None:
    from inferometer.engine.parallel.gpu_collective import GpuCollective
    from inferometer.nn.collective import side_by_side

    for invariant in (False, True):
        ranks = GpuCollective(host, ranks_store(store, invariant), device, invariant=invariant, limit=timedelta(seconds=60))
        for dtype in (*DTYPES, torch.int32, torch.int64):
            for rows, columns in ((1, 3), (7, 1), (32, 1000), (32, 125_440), (0, 3)):
                parts = torch.randint(-128, 127, (host.size, rows, columns), generator=torch.Generator().manual_seed(rows)).to(dtype)
                own = parts[host.rank].to(device)
                assert torch.equal(ranks.gather(own).cpu(), side_by_side(parts))
                room = torch.zeros(rows, columns * host.size, dtype=dtype, device=device)[:, : columns * host.size - 1]
                assert torch.equal(ranks.gather(own, room).cpu(), side_by_side(parts, torch.zeros(room.shape, dtype=dtype)))


def ranks_store(store: Any, invariant: bool) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(str(invariant), store)


def recorded(host: Any, store: Any, device: torch.device) -> None:
    from inferometer.engine.graph import Graph
    from inferometer.engine.parallel.gpu_collective import GpuCollective
    from inferometer.engine.parallel.sum_choice import SIZES, Way
    from inferometer.kernels.rank_sum import rank_sum_torch

    ranks = GpuCollective(host, store, device, invariant=False, limit=timedelta(seconds=60))
    parts = [torch.stack([part(rank, rows, torch.bfloat16) for rank in range(host.size)]).to(device) for rows in ROWS]
    wanted, wrong = {each.shape[1]: rank_sum_torch(each) for each in parts}, torch.zeros((), dtype=torch.int64, device=device)
    room = [torch.empty_like(each[0]) for each in parts]
    ways: tuple[Way, ...] = ("mailbox", "rows", "pairs", "around")

    def work() -> None:
        for way in ways:
            ranks.choice = dict.fromkeys(SIZES, way)
            for each, x in zip(parts, room, strict=True):
                x.copy_(each[host.rank])
                x.copy_(ranks.all_reduce(x))
                wrong.add_((x != wanted[x.shape[0]]).sum())

    work()
    graph = Graph(work, device, torch.cuda.graph_pool_handle())
    for turn in range(50):
        if turn % host.size == host.rank:
            torch.cuda._sleep(1_000_000)  # one rank late, then the other
        graph()
        if turn % 7 == 0:
            work()
    assert int(wrong) == 0


def invariant_sums(host: Any, store: Any, device: torch.device) -> None:
    """A row has the same bits alone and among thousands."""
    from inferometer.engine.parallel.gpu_collective import GpuCollective

    ranks = GpuCollective(host, store, device, invariant=True, limit=timedelta(seconds=60))
    norm, x = weights(device, torch.bfloat16), part(host.rank, 20000, torch.bfloat16).to(device)
    residual = part(9, 20000, torch.bfloat16).to(device)
    many = ranks.sum_of(lambda own: own * 1, x, residual.clone(), norm)
    for row in (0, 1, 777, 19999):
        alone = ranks.sum_of(lambda own: own * 1, x[row : row + 1], residual[row : row + 1].clone(), norm)
        assert torch.equal(alone[0], many[row])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("work", [sums, gathers, recorded, invariant_sums])
def test_ranks_agree(size: int, work: Callable[..., None], tmp_path: Path) -> None:
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} CUDA devices, here are {torch.cuda.device_count()}")
    run(size, work, tmp_path)
