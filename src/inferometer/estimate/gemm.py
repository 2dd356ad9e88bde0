"""How long a matrix product keeps a GPU's tensor units and its memory busy: tiles, waves over the multiprocessors, split inner sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Rows and columns of the output that one block of threads computes, as matrix libraries offer them.
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (16, 64))
_SPLITS = (1, 2, 4, 8, 16)
_SHORTEST_INNER = 256
# A tile reads (rows + columns) operands for every rows x columns multiply-adds: the share of the tensor rate that a tile reaches is
# 1 / (1 + 26 (1 / rows + 1 / columns)), relative to the largest tile. A block fills and drains its pipeline once: as long as 125 elements
# of the inner sum take. A last wave that is not full costs 0.3 of a whole one on average: blocks of several sizes share a multiprocessor.
# A library's partial sums cost a second kernel. Arithmetic and traffic overlap but for what the exponent leaves. The five are fitted on
# 5,278 bfloat16 products on an A100 SXM 80 GB (m 1 to 8192, n and k up to 65536; vLLM 0.14.0, aiconfigurator's a100_sxm tables), whose mean
# absolute error is then 10 %.
_TILE_REUSE = 26.0
_FILL = 125.0
_RAGGED_WAVE = 0.3
_SPLIT_S = 1.5e-6
_OVERLAP = 3.0
_LARGEST = 1 / (1 + _TILE_REUSE * (1 / 256 + 1 / 128))
_PARTIAL_BYTES = 4


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


def product(m: int, n: int, k: int, *, flop_s: float, bytes_s: float, memory_s: float, multiprocessors: int, groups: int = 1) -> Product:
    """The best of the tilings for (m, k) x (k, n) on a device that multiplies `flop_s` and moves `bytes_s` at most.

    memory_s: what moving the operands and the result takes, which is done beside. groups: products of this shape in one kernel.
    """
    best, least = None, math.inf
    rate = flop_s / multiprocessors
    for rows, columns in _TILES:
        tiles = groups * -(-m // rows) * -(-n // columns)
        share = 1 / (1 + _TILE_REUSE * (1 / rows + 1 / columns)) / _LARGEST
        for split in _SPLITS:
            if split > 1 and (k < split * _SHORTEST_INNER or tiles * split > 2 * multiprocessors):
                break
            waves = tiles * split / multiprocessors
            waves = max(1.0, _RAGGED_WAVE * math.ceil(waves) + (1 - _RAGGED_WAVE) * waves)
            tensor = waves * 2 * rows * columns * (k / split + _FILL) / (rate * share)
            partial = 2 * groups * m * n * _PARTIAL_BYTES * split if split > 1 else 0
            extra = _SPLIT_S if split > 1 else 0.0
            taken = overlapped(tensor, memory_s + partial / bytes_s) + extra
            if taken < least:
                best, least = Product(tensor, partial, extra), taken
    assert best is not None, "there are tilings"
    return best
