"""How a model takes its sums."""

from __future__ import annotations

from enum import Enum


class Numerics(Enum):
    """FASTEST: whatever is fastest for a sweep's sizes. A token's bits may then differ with its company: matrix libraries and kernels
    choose their order of additions by how many rows and keys there are.

    INVARIANT: a token's bits are a function of the tokens before it in its sequence alone, on one machine with one number of threads:
    neither other sequences, nor chunks, cached prefixes, preemption or graphs change them. See `nn/invariant.py`.
    """

    FASTEST = "fastest"
    INVARIANT = "invariant"
