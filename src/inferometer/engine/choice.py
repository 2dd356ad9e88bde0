"""Choosing tokens as a plan says, and ranking the likeliest."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.engine.sampling_plan import Signature
from inferometer.engine.sampling_table import SamplingTable
from inferometer.kernels.token_bounds import bounds
from inferometer.kernels.token_choice import choose
from inferometer.kernels.token_rows import Bounds, Drawing, Places


def take(
    scores: Tensor, places: Places, needs: Signature, table: SamplingTable | None, step: Tensor | int
) -> tuple[Drawing | None, Bounds | None]:
    """Chooses a token for every row: at most three launches on a GPU. Returns how, for whoever wants to know more than the token.

    scores: [rows, vocabulary] of any floating type, edits applied. step: the column of the table's random numbers, on the device (int64
    [1]) or known to the host.
    """
    if table is None:
        choose(scores, places)
        return None, None
    drawing, left = table.drawing(step), None
    if needs.filters:
        left = bounds(scores, table.filters(needs.largest_k, top_p=needs.top_p, typical_p=needs.typical_p))
    choose(scores, places, drawing, left)
    return drawing, left


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
