"""Random numbers that depend on nothing but a seed and a position: the same on every device, in every batch, on every rank.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of two 32-bit multiplications
turn a 128-bit counter under a 64-bit key into 128 random bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.nn.upload import upload

ROUNDS = 10
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words for each counter, [4, ...]. counter int64 [4, ...] and key int64 [2, ...] hold 32-bit words.

    Both have as many dimensions; the key may have 1 where the counter has more.
    """
    device, ones = counter.device, (1,) * (counter.ndim - 1)
    multipliers = upload(_MULTIPLIERS, torch.int64, device).view(2, *ones)
    weyl = upload(_WEYL, torch.int64, device).view(2, *ones)
    rounds = torch.arange(ROUNDS, dtype=torch.int64, device=device).view(-1, 1, *ones)
    keys = ((key + rounds * weyl) & _MASK).unbind(0)
    even, odd = counter[0::2], counter[1::2]
    for round_key in keys:
        # A product takes all 64 bits and so may come out negative; the shift copies the sign, the mask takes the copies off.
        product = (even * multipliers).flip(0)
        even = (product >> 32).bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(_MASK)
        odd = product.bitwise_and_(_MASK)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A float64 in [0, 1) with 53 random bits for each pair, of the shape that int64 `seeds` and `positions` broadcast to.

    A seed of 2^63 or more is given as its two's complement, `signed(seed)`. The key is the seed, the counter the position.
    """
    positions = positions + torch.zeros_like(seeds)
    seeds = seeds.reshape((1,) * (positions.ndim - seeds.ndim) + seeds.shape)
    zero = torch.zeros_like(positions)
    words = philox(torch.stack((*_halves(positions), zero, zero)), torch.stack(_halves(seeds)))
    bits = ((words[0] >> 5) << 26) | (words[1] >> 6)
    return bits.to(torch.float64) * 2.0**-53


def signed(seed: int) -> int:
    """An unsigned 64-bit seed as the int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper 32 bits."""
    return values & _MASK, (values >> 32) & _MASK
