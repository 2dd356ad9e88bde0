"""Random numbers that depend on nothing but a seed and a position: the same on every device, in every batch, on every rank.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of two 32-bit multiplications
turn a 128-bit counter under a 64-bit key into 128 random bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words for each counter. counter int64 [4, N] and key int64 [2, N] hold 32-bit words; so does the result, [4, N]."""
    device = counter.device
    multipliers = torch.tensor(_MULTIPLIERS, dtype=torch.int64, device=device)[:, None]
    weyl = torch.tensor(_WEYL, dtype=torch.int64, device=device)[:, None]
    rounds = torch.arange(ROUNDS, dtype=torch.int64, device=device)[:, None, None]
    keys = ((key + rounds * weyl) & _MASK).unbind(0)
    even, odd = counter[0::2], counter[1::2]
    for round_key in keys:
        # A product takes all 64 bits and so may come out negative; the shift copies the sign, the mask takes the copies off.
        product = even * multipliers
        high, low = (product >> 32) & _MASK, product & _MASK
        even, odd = high.flip(0) ^ odd ^ round_key, low.flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A float64 in [0, 1) with 53 random bits for each pair, of the shape that int64 `seeds` and `positions` broadcast to.

    A seed of 2^63 or more is given as its two's complement, `signed(seed)`. The key is the seed, the counter the position.
    """
    seeds, positions = seeds + torch.zeros_like(positions), positions + torch.zeros_like(seeds)
    shape, seeds, positions = seeds.shape, seeds.flatten(), positions.flatten()
    zero = torch.zeros_like(positions)
    words = philox(torch.stack((*_halves(positions), zero, zero)), torch.stack(_halves(seeds)))
    bits = ((words[0] >> 5) << 26) | (words[1] >> 6)
    return (bits.to(torch.float64) * 2.0**-53).reshape(shape)


def signed(seed: int) -> int:
    """An unsigned 64-bit seed as the int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper 32 bits."""
    return values & _MASK, (values >> 32) & _MASK
