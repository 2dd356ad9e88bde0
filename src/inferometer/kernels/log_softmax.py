"""Log-probabilities and probabilities of rows of scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, kernel, power_of_two, tl, usable

WIDEST = 16384
"""Scores that a program holds in its registers: 16 for each of 1024 threads."""


def log_softmax(scores: Tensor) -> Tensor:
    """float32 (rows, vocabulary) -> as many log-probabilities; a row's bits depend on that row alone.

    Torch's own kernel on a GPU reads from the first address that is a multiple of 16 bytes on: in a vocabulary that is no multiple of
    four it adds up in an order that depends on the row's number, and is no faster than this one.

    Moves 2 * rows * vocabulary elements from and to memory, if the L2 cache holds the rows that are under way: they are read three times.
    """
    return log_softmax_triton(scores) if usable(scores.device) and scores.shape[1] % 4 else log_softmax_torch(scores)


def softmax(scores: Tensor) -> Tensor:
    """Probabilities of float32 (rows, vocabulary), under the same promise."""
    return log_softmax_triton(scores).exp_() if usable(scores.device) and scores.shape[1] % 4 else scores.softmax(-1)


def log_softmax_torch(scores: Tensor) -> Tensor:
    """The reference. On the CPU torch takes row by row, each in the same order."""
    return scores.log_softmax(-1)


def log_softmax_triton(scores: Tensor) -> Tensor:
    """The kernel."""
    rows, vocabulary = scores.shape
    out = torch.empty((rows, vocabulary), dtype=scores.dtype, device=scores.device)
    if out.numel() == 0:
        return out
    scores = scores.contiguous()
    block = min(WIDEST, power_of_two(vocabulary))
    _log_softmax.launch((rows,), scores, out, vocabulary=vocabulary, block=block, num_warps=min(32, max(1, block // 512)))
    return out


@kernel()
def _log_softmax(scores: Any, out: Any, vocabulary: constexpr, block: constexpr) -> None:
    """One row. A row of nothing finite gives NaN, as torch's does."""
    at = tl.program_id(0).to(tl.int64) * vocabulary
    lane = tl.arange(0, block)
    best = tl.full([block], float("-inf"), tl.float32)
    for base in range(0, vocabulary, block):
        best = tl.maximum(best, tl.load(scores + at + base + lane, mask=base + lane < vocabulary, other=float("-inf")))
    highest = tl.max(best, 0)
    total = tl.zeros([block], tl.float32)
    for base in range(0, vocabulary, block):
        score = tl.load(scores + at + base + lane, mask=base + lane < vocabulary, other=float("-inf"))
        total += tl.exp(score - highest)
    mass = tl.log(tl.sum(total, 0))
    for base in range(0, vocabulary, block):
        score = tl.load(scores + at + base + lane, mask=base + lane < vocabulary, other=0)
        tl.store(out + at + base + lane, score - highest - mass, mask=base + lane < vocabulary)
