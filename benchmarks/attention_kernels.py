"""How close the attention kernels come to what the GPU can do: python benchmarks/attention_kernels.py [--sweep] [--only TEXT].

Decode is bound by memory: its rate stands beside the copy rate, prefill's beside the rate of a matrix product, both measured here.
Every case is checked against the reference before it is timed. Times are of CUDA graphs in which as many layers with pools of
their own follow each other as it takes that no key is in the L2 cache from the time before.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import torch
from gpu_clock import CACHE_BYTES, begin, milliseconds
from torch import Tensor

from inferometer.kernels import paged_decode, ragged_prefill
from inferometer.kernels.decode_launch import Cut, cut, launch_for
from inferometer.kernels.support import Tiles, capability, processors
from inferometer.nn.alibi import slopes as alibi

PAGE_SIZE = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Pool:
    keys: Tensor
    values: Tensor
    table: Tensor
    seats: Tensor


@dataclass(frozen=True)
class Decode:
    """One query token for each context."""

    name: str
    heads: int
    kv_heads: int
    head_size: int
    contexts: tuple[int, ...]

    @property
    def bytes(self) -> int:
        rows = len(self.contexts)
        return DTYPE.itemsize * self.head_size * (2 * sum(self.contexts) * self.kv_heads + 2 * rows * self.heads)


@dataclass(frozen=True)
class Prefill:
    """rows: (query tokens, context)."""

    name: str
    heads: int
    kv_heads: int
    head_size: int
    rows: tuple[tuple[int, int], ...]
    biased: bool = False

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(context for _, context in self.rows)

    @property
    def flops(self) -> int:
        """Of the keys that queries see: two products of head_size multiplications and additions."""
        seen = sum(count * context - count * (count - 1) // 2 for count, context in self.rows)
        return 4 * seen * self.heads * self.head_size


def ragged(rows: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Contexts spread evenly over the range, in an order without pattern."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    return tuple(shortest + i * (longest - shortest) // (rows - 1) for i in order)


CASES: tuple[Decode | Prefill, ...] = (
    Decode("decode opt-6.7b 250 rows of 50..1500", 32, 32, 128, ragged(250, 50, 1500)),
    Decode("decode opt-1.3b 256 rows of 530", 32, 32, 64, (530,) * 256),
    Decode("decode llama-8b 128 rows of 50..1500", 32, 8, 128, ragged(128, 50, 1500)),
    Decode("decode doc004 1024 rows of 10..110", 16, 16, 128, ragged(1024, 10, 110)),
    Decode("decode doc004 256 rows of 10..110", 16, 16, 128, ragged(256, 10, 110)),
    Decode("decode doc004 64 rows of 10..110", 16, 16, 128, ragged(64, 10, 110)),
    Decode("decode llama-8b 512 rows of 10..110", 32, 8, 128, ragged(512, 10, 110)),
    Decode("decode 512 rows of 100..400", 16, 16, 128, ragged(512, 100, 400)),
    Decode("decode opt-1.3b 512 rows of 10..110", 32, 32, 64, ragged(512, 10, 110)),
    Decode("decode 16 rows of 50..1500", 32, 32, 128, ragged(16, 50, 1500)),
    Decode("decode 1 row of 128", 16, 16, 128, (128,)),
    Decode("decode 1 row of 512", 16, 16, 128, (512,)),
    Decode("decode 1 row of 2048", 32, 32, 64, (2048,)),
    Decode("decode llama-8b 1 row of 8192", 32, 8, 128, (8192,)),
    Decode("decode few: doc004 1 row of 544", 16, 16, 128, (544,)),
    Decode("decode few: bloomz-7b1 1 row of 1032", 32, 32, 128, (1032,)),
    Decode("decode few: bloomz-7b1 4 rows of 1032", 32, 32, 128, (1032,) * 4),
    Decode("decode few: half of bloomz-7b1 4 rows of 1032", 16, 16, 128, (1032,) * 4),
    Decode("decode few: llama-8b 1 row of 544", 32, 8, 128, (544,)),
    Decode("decode few: llama-8b 1 row of 1856", 32, 8, 128, (1856,)),
    Prefill("prefill 16 x 1024, heads of 64", 32, 32, 64, ((1024, 1024),) * 16),
    Prefill("prefill 16 x 1024, heads of 128", 32, 32, 128, ((1024, 1024),) * 16),
    Prefill("prefill 4 x 512 behind 1024", 32, 32, 128, ((512, 1536),) * 4),
    Prefill("prefill llama-8b 4 x 512 behind 1024", 32, 8, 128, ((512, 1536),) * 4),
    Prefill("prefill 8 x 1024, ALiBi", 32, 32, 128, ((1024, 1024),) * 8, biased=True),
)

ALONE_SWEEP = tuple(
    Tiles(*sizes)
    for sizes in (
        (8, 1, 4), (8, 2, 3), (8, 2, 4), (16, 1, 3), (16, 1, 4), (16, 2, 2), (16, 2, 3), (16, 2, 4), (16, 4, 3), (16, 4, 4), (32, 2, 2),
        (32, 2, 3), (32, 4, 2), (32, 4, 3), (64, 2, 3), (64, 4, 3),
    )
)  # fmt: skip
GROUPED_SWEEP = tuple(
    Tiles(*sizes, queries=64)
    for sizes in ((64, 4, 2), (64, 4, 3), (64, 4, 4), (32, 4, 3), (32, 4, 4), (64, 8, 3), (128, 8, 2), (32, 2, 3), (16, 2, 3), (16, 4, 3))
)
CUT_SWEEP = tuple(
    Cut(parts, least)
    for parts, least in ((1, 2048), (2, 128), (4, 128), (8, 128), (16, 128), (32, 128), (8, 64), (16, 64), (32, 64), (16, 32), (32, 32))
)
PREFILL_SWEEP = {
    64: tuple(Tiles(*sizes) for sizes in ((64, 8, 2, 128), (64, 8, 3, 128), (64, 4, 3, 128), (128, 8, 2, 128), (64, 4, 2, 64))),
    128: tuple(Tiles(*sizes) for sizes in ((64, 8, 2, 128), (64, 8, 3, 128), (128, 8, 2, 128), (64, 4, 2, 64), (32, 8, 3, 128))),
}


@dataclass(frozen=True)
class Choice:
    tiles: Tiles
    cut: Cut | None = None

    def __str__(self) -> str:
        sizes = f"queries={self.tiles.queries} " if self.cut is None else ""
        sizes += f"block={self.tiles.block} warps={self.tiles.warps} stages={self.tiles.stages}"
        return sizes if self.cut is None else f"{sizes} parts={self.cut.parts}"


@dataclass(frozen=True)
class Clock:
    started: float = field(default_factory=time.monotonic)

    @property
    def passed(self) -> float:
        """Seconds."""
        return time.monotonic() - self.started


def pools(case: Decode | Prefill) -> list[Pool]:
    """As many layers as outgrow the cache, at most 256. Pages lie in no order; all layers share the block table."""
    counts = [-(-context // PAGE_SIZE) for context in case.contexts]
    order = torch.randperm(sum(counts), dtype=torch.int32, device="cuda")
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
    first = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[first : first + count]
        first += count
    seats = torch.arange(len(counts), dtype=torch.int32, device="cuda")
    shape = (sum(counts) * PAGE_SIZE, case.kv_heads, case.head_size)
    layers = min(256, -(-CACHE_BYTES // (2 * DTYPE.itemsize * shape[0] * shape[1] * shape[2])))
    return [Pool(*(torch.randn(shape, dtype=DTYPE, device="cuda") for _ in range(2)), table, seats) for _ in range(layers)]


def slopes_of(case: Decode | Prefill) -> Tensor | None:
    return torch.tensor(alibi(case.heads), device="cuda") if isinstance(case, Prefill) and case.biased else None


def launches(case: Decode | Prefill, held: list[Pool], query: Tensor, choice: Choice) -> list[Callable[[], Tensor]]:
    contexts = torch.tensor(case.contexts, dtype=torch.int32, device="cuda")
    slopes = slopes_of(case)
    scale = case.head_size**-0.5
    if isinstance(case, Decode):
        return [
            lambda pool=pool: paged_decode.paged_decode_triton(
                query,
                pool.keys,
                pool.values,
                pool.table,
                pool.seats,
                contexts,
                page_size=PAGE_SIZE,
                scale=scale,
                longest=max(case.contexts),
                tiling=choice.tiles,
                cutting=choice.cut,
            )
            for pool in held
        ]
    starts = starts_of(case)
    return [
        lambda pool=pool: ragged_prefill.ragged_prefill_triton(
            query,
            pool.keys,
            pool.values,
            pool.table,
            pool.seats,
            starts,
            contexts,
            page_size=PAGE_SIZE,
            scale=scale,
            longest_query=max(count for count, _ in case.rows),
            slopes=slopes,
            tiling=choice.tiles,
        )
        for pool in held
    ]


def starts_of(case: Prefill) -> Tensor:
    return torch.tensor([0, *torch.tensor([count for count, _ in case.rows]).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def check(case: Decode | Prefill, pool: Pool, query: Tensor, got: Tensor) -> None:
    """Against the reference in float32 on the first rows. Raises AssertionError with what differs."""
    rows = 2
    contexts = torch.tensor(case.contexts[:rows], dtype=torch.int32, device="cuda")
    pages = pool.keys, pool.values, pool.table, pool.seats[:rows]
    scale = case.head_size**-0.5
    if isinstance(case, Decode):
        want = paged_decode.paged_decode_torch(query[:rows], *pages, contexts, page_size=PAGE_SIZE, scale=scale)
    else:
        starts = starts_of(case)[: rows + 1]
        asked = query[: int(starts[-1])]
        slopes = slopes_of(case)
        want = ragged_prefill.ragged_prefill_torch(asked, *pages, starts, contexts, page_size=PAGE_SIZE, scale=scale, slopes=slopes)
    torch.testing.assert_close(got[: len(want)], want, atol=2e-2, rtol=2e-2)


def standard(case: Decode | Prefill, options: argparse.Namespace) -> Choice:
    """What the package would launch, with what the command line puts in its place."""
    device = torch.device("cuda", torch.cuda.current_device())
    over = {name: getattr(options, name) for name in ("block", "warps", "stages", "queries") if getattr(options, name) is not None}
    if isinstance(case, Prefill):
        return Choice(replace(ragged_prefill.tiles(DTYPE, case.head_size, max(count for count, _ in case.rows), device), **over))
    programs, longest, count = len(case.contexts) * case.kv_heads, max(case.contexts), processors(device)
    members = 1 if case.heads == case.kv_heads else max(16, case.heads // case.kv_heads)
    split = cut(programs, longest, count, members=members)
    if options.parts is not None:
        split = replace(split, parts=options.parts, least=min(split.least, max(1, longest // options.parts)))
    head_bytes = case.head_size * DTYPE.itemsize
    tiles = launch_for(programs, split, longest, count, members=members, narrow=False, card=capability(device), head_bytes=head_bytes)
    return Choice(replace(tiles, **over), split)


def choices(case: Decode | Prefill, options: argparse.Namespace) -> tuple[Choice, ...]:
    """What to time: the standard launch, then, for a sweep, others."""
    chosen = standard(case, options)
    if not options.sweep:
        return (chosen,)
    if isinstance(case, Prefill):
        others = [Choice(tiles) for tiles in PREFILL_SWEEP[case.head_size]]
    else:
        tilings = ALONE_SWEEP if case.heads == case.kv_heads else GROUPED_SWEEP
        cuts = CUT_SWEEP if len(case.contexts) <= 16 else CUT_SWEEP[:3]
        others = [Choice(tiles, chosen.cut) for tiles in tilings]
        others += [Choice(chosen.tiles, other) for other in cuts if other.parts == 1 or other.parts * other.least <= max(case.contexts)]
    return tuple(dict.fromkeys((chosen, *others)))


def compile_ahead(case: Decode | Prefill, choices: tuple[Choice, ...]) -> None:
    """In a process of its own: what is compiled lies in Triton's cache on disk then. A failure is told when the launch is timed."""
    small = replace(case, rows=((1, 1),)) if isinstance(case, Prefill) else replace(case, contexts=(1,))
    held = pools(small)[:1]
    query = torch.zeros(1, case.heads, case.head_size, dtype=DTYPE, device="cuda")
    for choice in choices:
        with suppress(Exception):
            launches(small, held, query, choice)[0]()


def torchs_own(case: Prefill, pool: Pool, query: Tensor) -> float | None:
    """Milliseconds of torch's flash attention on keys that lie side by side; None for ALiBi, which it does not take."""
    if case.biased:
        return None
    tokens = sum(case.contexts)
    key, value = (held[:tokens].repeat_interleave(case.heads // case.kv_heads, 1) for held in (pool.keys, pool.values))
    bounds = torch.tensor([0, *torch.tensor(case.contexts).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    starts, most = starts_of(case), max(count for count, _ in case.rows)
    run = torch.ops.aten._flash_attention_forward
    return milliseconds([lambda: run(query, key, value, starts, bounds, most, max(case.contexts), 0.0, True, False)[0]] * 2)


def report(case: Decode | Prefill, choice: Choice, ms: float, copy: float, gemm: float) -> None:
    if isinstance(case, Decode):
        rate = case.bytes / ms / 1e6
        print(f"{case.name:40} {ms * 1e3:9.1f} us {rate:8.0f} GB/s    {rate / copy:6.1%} of copy   {choice}", flush=True)
    else:
        rate = case.flops / ms / 1e9
        print(f"{case.name:40} {ms * 1e3:9.1f} us {rate:8.0f} TFLOP/s {rate / gemm:6.1%} of GEMM   {choice}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--sweep", action="store_true", help="try other launches too")
    parser.add_argument("--seconds", type=float, default=80, help="start no further launch of a sweep after so long (%(default)s)")
    for name in ("block", "warps", "stages", "queries", "parts"):
        parser.add_argument(f"--{name}", type=int, help="instead of the table's")
    options = parser.parse_args()
    found = begin(DTYPE)
    copy, gemm = found.copy_gb_s, found.gemm_tflop_s
    clock = Clock()
    plan = [(case, choices(case, options)) for case in CASES if options.only in case.name]
    if options.sweep:
        with ProcessPoolExecutor(min(8, os.cpu_count() or 1), mp_context=get_context("spawn")) as workers:
            for case, tried in plan:
                for half in (tried[::2], tried[1::2]):
                    workers.submit(compile_ahead, case, half)
        print(f"compiled after {clock.passed:.0f} s", flush=True)
    left_out = 0
    for case, tried in plan:
        torch.manual_seed(0)
        held = pools(case)
        tokens = sum(count for count, _ in case.rows) if isinstance(case, Prefill) else len(case.contexts)
        query = torch.randn(tokens, case.heads, case.head_size, dtype=DTYPE, device="cuda")
        for i, choice in enumerate(tried):
            if i and clock.passed > options.seconds:
                left_out += 1
                continue
            try:
                runs = launches(case, held, query, choice)
                check(case, held[0], query, runs[0]())
                report(case, choice, milliseconds(runs), copy, gemm)
            except Exception as error:  # in a sweep, that a launch does not fit the card is a result
                if not options.sweep:
                    raise
                print(f"{case.name:40} {type(error).__name__}: {str(error).splitlines()[0][:80]}   {choice}", flush=True)
        if isinstance(case, Prefill) and (ms := torchs_own(case, held[0], query)) is not None:
            print(f"{'':40} {ms * 1e3:9.1f} us {case.flops / ms / 1e9:8.0f} TFLOP/s is torch's own, keys side by side", flush=True)
        del held, query
    if left_out:
        print(f"{left_out} launches of the sweep were left out for time; --seconds gives more", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
