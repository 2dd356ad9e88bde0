"""How long a matrix product keeps a GPU's tensor units and its memory busy: tiles, waves over the multiprocessors, split inner sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Rows and columns of the output that one block of threads computes, as matrix libraries offer them.
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (16, 64))
_SPLITS = (1, 2, 4, 8, 16)
_SHORTEST_INNER = 256
_OVERLAP = 3.0
"""Arithmetic and traffic overlap but for what the exponent leaves."""
_PARTIAL_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What tells the kernels of matrix libraries apart from one generation of matrix units to the next.

    reuse: a tile reads (rows + columns) operands for every rows x columns multiply-adds: the share of the tensor rate that it reaches is
    1 / (1 + reuse (1 / rows + 1 / columns)), relative to the largest tile. fill: a block fills and drains its pipeline once: as long as so
    many elements of the inner sum take. ragged_wave: of a whole wave, what a last one that is not full costs on average: blocks of several
    sizes share a multiprocessor, or take their tiles one after another. split_s: seconds of the second kernel that adds partial sums.
    """

    reuse: float
    fill: float
    ragged_wave: float
    split_s: float

    def share(self, rows: int, columns: int) -> float:
        """Of the tensor rate, what a tile reaches."""
        return (1 + self.reuse * (1 / 256 + 1 / 128)) / (1 + self.reuse * (1 / rows + 1 / columns))


AMPERE = Library(reuse=26.0, fill=125.0, ragged_wave=0.3, split_s=1.5e-6)
"""Fitted, with the overlap, on 5,278 bfloat16 products on an A100 SXM 80 GB (m 1 to 8192, n and k up to 65536; vLLM 0.14.0,
aiconfigurator's a100_sxm tables), whose mean absolute error is then 10 %."""
HOPPER = Library(reuse=1.9, fill=3.0, ragged_wave=0.6, split_s=4.5e-6)
"""Tiles are fetched without threads' help, and blocks go on to the next tile while the last is stored. Fitted on the 224 products of
operations.toml's product-h200 that have 100 rows and more: 5 % off, on shapes that were left out as well; with the others' constants 15 %,
nearly all too slow."""
_HOPPER = "9.0"


def library(compute_capability: str | None, dtype: str) -> Library:
    """What makes a device's products of such operands. Those of float32 know no matrix units."""
    return HOPPER if compute_capability == _HOPPER and dtype != "float32" else AMPERE


@dataclass(frozen=True, slots=True)
class Product:
    """What one product asks of the GPU: seconds of its tensor units at their full rate, bytes for split sums, seconds besides."""

    tensor_s: float
    partial_bytes: int
    extra_s: float


def overlapped(first_s: float, second_s: float) -> float:
    """The time of two kinds of work that a kernel does at once: the longer, and a little more where they are alike."""
    if not first_s or not second_s:
        return first_s + second_s
    long, short = max(first_s, second_s), min(first_s, second_s)
    return long * float((1 + (short / long) ** _OVERLAP) ** (1 / _OVERLAP))


def product(
    m: int,
    n: int,
    k: int,
    *,
    flop_s: float,
    bytes_s: float,
    memory_s: float,
    multiprocessors: int,
    kernels: Library = AMPERE,
    groups: int = 1,
) -> Product:
    """The best of the tilings for (m, k) x (k, n) on a device that multiplies `flop_s` and moves `bytes_s` at most.

    memory_s: what moving the operands and the result takes, which is done beside. kernels: whose they are. groups: products of this shape
    in one kernel.
    """
    best, least = None, math.inf
    rate = flop_s / multiprocessors
    for rows, columns in _TILES:
        tiles = groups * -(-m // rows) * -(-n // columns)
        share = kernels.share(rows, columns)
        for split in _SPLITS:
            if split > 1 and (k < split * _SHORTEST_INNER or tiles * split > 2 * multiprocessors):
                break
            waves = tiles * split / multiprocessors
            waves = max(1.0, kernels.ragged_wave * math.ceil(waves) + (1 - kernels.ragged_wave) * waves)
            tensor = waves * 2 * rows * columns * (k / split + kernels.fill) / (rate * share)
            partial = 2 * groups * m * n * _PARTIAL_BYTES * split if split > 1 else 0
            extra = kernels.split_s if split > 1 else 0.0
            taken = overlapped(tensor, memory_s + partial / bytes_s) + extra
            if taken < least:
                best, least = Product(tensor, partial, extra), taken
    assert best is not None, "there are tilings"
    return best
