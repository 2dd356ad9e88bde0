"""The launches of attention that `benchmarks/attention_kernels.py` may time: the package's own, and for a sweep others."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import torch
from attention_cases import DTYPE, Decode, Prefill

from inferometer.kernels import ragged_prefill
from inferometer.kernels.decode_launch import Cut, cut, launch_for
from inferometer.kernels.support import Tiles, capability, processors

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
