"""What top-k, top-p and typical-p ask of each row, and the bounds that they come to, by torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.kernels.token_choice import BITS, LOWEST, clean, weigh
from inferometer.kernels.token_rows import Bounds

SELECTED = (1024, 8192)
"""Best scores that are selected on a CPU before a whole row is sorted, which takes it 5 to 10 times as long: with those of trained models
they are nearly always enough."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What each row asks for, on the device of the logits, in any strides; None where no row asks.

    temperatures: float32 (rows,), positive. top_k: int64 (rows,), 0 for all, up to largest_k, which the host knows and which is at most
    the vocabulary. tails: float32 (rows,), negative for all. masses: float32 (rows,), above 1 for all.
    """

    temperatures: Tensor
    top_k: Tensor | None = None
    largest_k: int = 0
    tails: Tensor | None = None
    masses: Tensor | None = None


def bounds_torch(logits: Tensor, filters: Filters) -> Bounds:
    """The reference of `bounds`, which says what its arguments are."""
    scores, warmth = clean(logits.to(torch.float32)), 1 / filters.temperatures[:, None]
    rows, vocabulary = scores.shape
    floors = torch.full((rows, 1), -torch.inf, device=scores.device)
    last_ids = torch.full((rows, 1), vocabulary, device=scores.device)
    ceilings = torch.full((rows, 1), torch.inf, device=scores.device)
    if filters.top_k is not None:
        k = filters.top_k[:, None]
        for part in _asking(k > 0):
            floors[part] = top_k_floors(scores[part], k[part], filters.largest_k)
    if filters.tails is not None:
        tails = filters.tails[:, None]
        for part in _asking(tails >= 0):
            left = torch.where(scores[part] < floors[part], -torch.inf, scores[part])
            edges, ids = top_p_floors(left, tails[part], warmth[part])
            last_ids[part] = torch.where(edges < floors[part], vocabulary, ids)
            floors[part] = torch.maximum(floors[part], edges)
    if filters.masses is not None:
        masses = filters.masses[:, None]
        for part in _asking(masses <= 1):
            own = scores[part]
            kept = Bounds(floors[part, 0], last_ids[part, 0], ceilings[part, 0]).keep(own)
            lowest, highest = typical_range(torch.where(kept, own, -torch.inf), masses[part], warmth[part])
            last_ids[part] = torch.where(lowest > floors[part], vocabulary, last_ids[part])
            floors[part], ceilings[part] = torch.maximum(lowest, floors[part]), highest
    return Bounds(floors.squeeze(1), last_ids.squeeze(1).to(torch.int32), ceilings.squeeze(1))


def _asking(asks: Tensor) -> tuple[Tensor | slice, ...]:
    """The rows that ask, bool (rows, 1), as one index, if there are any; on a GPU, which would have to be waited for, all rows."""
    if asks.device.type != "cpu" or bool(asks.all()):
        return (slice(None),)
    rows = asks.squeeze(1).nonzero().squeeze(1)
    return (rows,) if len(rows) else ()


def top_k_floors(scores: Tensor, k: Tensor, largest: int) -> Tensor:
    """The k-th best score of each row, -inf where k is 0. scores: clean, float32 (rows, vocabulary). k: int64 (rows, 1) up to `largest`."""
    if not largest:
        return torch.full_like(k, -torch.inf, dtype=torch.float32)
    values = scores.topk(largest, dim=-1).values
    return values.gather(-1, (k - 1).clamp_(min=0)).masked_fill_(k == 0, -torch.inf)


def top_p_floors(scores: Tensor, tail: Tensor, warmth: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """Where top-p cuts: floors, float32, and the last ids of scores at them, int64, both (rows, 1). warmth: 1 / temperature.

    scores: clean, float32 (rows, vocabulary). tail: float32 (rows, 1).
    """
    best = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
    distance = (best - scores).mul_(warmth)
    unit = _unit(distance)
    total = _shares(distance, unit).sum(-1, keepdim=True)
    for count in _selections(scores):
        values = scores.topk(count, dim=-1).values if count < scores.shape[-1] else scores.sort(dim=-1, descending=True).values
        shares = _shares((best - values).mul_(warmth), unit)
        # What remains from each token on, itself included.
        rest = _floating(total - shares.cumsum(-1) + shares)
        kept = (~(rest <= tail)).sum(-1, keepdim=True).clamp_(min=1)
        if count == scores.shape[-1] or bool((kept < count).all()):
            break
    floors = values.gather(-1, kept - 1)
    wanted = kept - (values > floors).sum(-1, keepdim=True)
    return floors, _last_ids(scores == floors, wanted)


def typical_range(scores: Tensor, mass: Tensor, warmth: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """The least and the greatest score that typical-p keeps, float32 (rows, 1) each. Arguments as for top_p_floors.

    A token's surprise is its distance to the best, plus a number that all have: the entropy is the mean distance, plus that number.
    """
    best = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
    distance = (best - scores).mul_(warmth)
    unit = _unit(distance)
    shares = _shares(distance, unit)
    moments = torch.where(shares > 0, (-distance).exp_().mul_(unit).mul_(distance), 0.0).to(torch.int64)
    oddness = (distance - _floating(moments.sum(-1, keepdim=True))).abs_()
    for count in _selections(scores):
        if count < scores.shape[-1]:
            ordered, ids = oddness.topk(count, dim=-1, largest=False)
        else:
            ordered, ids = oddness.sort(dim=-1)
        reached = _floating(shares.gather(-1, ids).cumsum(-1))
        last = (reached < mass).sum(-1, keepdim=True)
        if count == scores.shape[-1] or bool((last < count).all()):
            break
    kept = oddness <= ordered.gather(-1, last.clamp_(max=scores.shape[-1] - 1))
    lowest = torch.where(kept, scores, torch.inf).amin(-1, keepdim=True)
    return lowest, torch.where(kept, scores, -torch.inf).amax(-1, keepdim=True)


def _selections(scores: Tensor) -> tuple[int, ...]:
    """How many of each row to put in order, one after another until it was enough. To know that, a GPU would have to be waited for."""
    vocabulary = scores.shape[-1]
    if scores.device.type != "cpu" or not scores.numel():
        return (vocabulary,)
    return (*(count for count in SELECTED if 2 * count < vocabulary), vocabulary)


def _unit(distance: Tensor) -> Tensor:
    """What makes probabilities in fixed point of exponentials: float32 (rows, 1), 1 for a row without any. distance: to the best."""
    total = weigh(-distance, torch.zeros_like(distance[:, :1])).sum(-1, keepdim=True).to(torch.float64)
    return torch.where(total > 0, 2.0 ** (2 * BITS) / total, 1.0).to(torch.float32)


def _shares(distance: Tensor, unit: Tensor) -> Tensor:
    """Probabilities in fixed point, int64."""
    return (-distance).exp_().mul_(unit).to(torch.int64)


def _floating(share: Tensor) -> Tensor:
    """Fixed point as float32."""
    return (share.to(torch.float64) * 2.0**-BITS).to(torch.float32)


def _last_ids(equal: Tensor, wanted: Tensor) -> Tensor:
    """The id of the `wanted`-th true of each row, int64 (rows, 1)."""
    if equal.device.type == "cpu" and bool((equal.sum(-1, keepdim=True) == wanted).all()):
        return torch.full_like(wanted, equal.shape[-1])
    return (equal.cumsum(-1, dtype=torch.int32) < wanted).sum(-1, keepdim=True)
