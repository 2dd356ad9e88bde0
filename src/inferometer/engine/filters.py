"""Filters on scores: each takes float32 scores [rows, vocabulary] and one parameter a row, [rows, 1].

What a filter takes out becomes -inf; the rest keeps its score. The best token of a row always stays (under typical-p: the most
typical). Semantics are those of transformers' warpers of the same names; where they leave open which of equal scores goes
(top-p, at the edge), the higher token id does. No filter looks across rows or waits for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inferometer.engine.mass import fixed, floating
from inferometer.kernels.log_softmax import log_softmax, softmax

_LOWEST = torch.finfo(torch.float32).min


def temperature(scores: Tensor, temperatures: Tensor, tempered: Tensor) -> Tensor:
    """Divides the distance to the row's best score: any temperature leaves the best at a finite score.

    The shift changes no probability. tempered: float32 [rows, 1], 1 where a temperature applies; rows with 0 there and
    temperature 1 come back bit by bit.
    """
    best = scores.amax(dim=-1, keepdim=True).clamp_(min=_LOWEST)
    return (scores - best * tempered) / temperatures


def top_k(scores: Tensor, k: Tensor, largest: int) -> Tensor:
    """Keeps the k best and whatever equals the k-th; all where k is 0.

    k: int64 up to `largest`, which the host knows and which is at most the vocabulary.
    """
    best = scores.topk(largest, dim=-1).values
    threshold = best.gather(-1, (k - 1).clamp_(min=0)).masked_fill(k == 0, -math.inf)
    return scores.masked_fill(scores < threshold, -math.inf)


def top_p(scores: Tensor, tail: Tensor) -> Tensor:
    """Takes out the least likely tokens that together have at most `tail` = 1 - top_p of the probability, none if it is negative.

    tail is float32.
    """
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    values, ids = values.flip(-1), ids.flip(-1)
    mass = floating(fixed(softmax(values)).cumsum(dim=-1)).to(torch.float32)
    out = mass <= tail
    out[:, -1] = False
    return scores.masked_fill(torch.zeros_like(out).scatter_(-1, ids, out), -math.inf)


def typical_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keeps the tokens whose surprise is closest to the entropy, up to probability `mass`, and whatever is as close as the last.

    A mass above 1 is never reached and keeps all.
    Locally typical sampling (Meister et al., 2023).
    """
    logprobs = log_softmax(scores)
    entropy = floating(fixed(-(logprobs * logprobs.exp())).sum(dim=-1, keepdim=True)).to(torch.float32)
    distance = (-logprobs - entropy).abs()
    ordered, ids = distance.sort(dim=-1, stable=True)
    reached = floating(fixed(softmax(scores.gather(-1, ids))).cumsum(dim=-1)).to(torch.float32)
    last = (reached < mass).sum(dim=-1, keepdim=True).clamp_(max=scores.shape[-1] - 1)
    out = ordered > ordered.gather(-1, last)
    return scores.masked_fill(torch.zeros_like(out).scatter_(-1, ids, out), -math.inf)
