"""Choosing a token from log-probabilities, and ranking the likeliest."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.engine.mass import fixed

LARGEST = torch.finfo(torch.float32).max


def clean(scores: Tensor) -> Tensor:
    """A copy of `scores` in which NaN counts as -inf and +inf as the largest number."""
    return scores.nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf)


def sound(logprobs: Tensor) -> Tensor:
    """Log-softmax of a row without a finite score is NaN: its tokens have no probability, so -inf."""
    return logprobs.nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row by the inverse of the cumulative distribution, int64 [rows].

    logprobs: float32 [rows, vocabulary]. uniforms: float64 [rows, 1] in [0, 1). The cumulative sum is exact, so that the chosen
    token is the first whose sum exceeds its share of the row's total; one with no probability adds nothing and is never it.
    A row of NaN, which has no probability at all, gives token 0.
    """
    cumulative = fixed(logprobs.to(torch.float64).exp_()).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # The product may round up to the total, which no token exceeds.
    target = torch.minimum((uniforms * total.to(torch.float64)).to(torch.int64), total - 1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def likeliest(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids (int64) and log-probabilities of the `count` best tokens a row, [rows, count], best first, equals by lower id.

    torch's top-k leaves the order of equals open, and low precision makes many; here each score and id become one whole number.
    """
    vocabulary = logprobs.shape[-1]
    bits = (logprobs + 0.0).view(torch.int32)  # adding 0 turns -0.0, which would rank below 0.0, into 0.0
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    ids = torch.arange(vocabulary, device=logprobs.device)
    keys = ((ascending << 32) | (vocabulary - 1 - ids)).topk(min(count, vocabulary), dim=-1).values
    best = vocabulary - 1 - (keys & 0xFFFFFFFF)
    return best, logprobs.gather(-1, best)
