"""A sweep: which tokens of which sequences run through the layers together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inferometer.schedule.sequence import Sequence


class Share(NamedTuple):
    """What one sequence runs in a sweep: `count` tokens from position `start` on. (A tuple, as a sweep makes hundreds.)

    samples: whether a token is sampled after the last of them.
    decodes: the one token was sampled by an earlier sweep since the sequence took its seat, and may be on the device alone, at the seat.
    Else the host knows all of the tokens.
    enters: pages before `start` may be new to the sequence's row of the block table: it has just taken its seat, or found more of its
    prompt in the prefix cache. Else only the pages of the share's own positions can be new.
    scored_before: prompt positions whose log-probabilities earlier sweeps yield.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment]  # a field, not tuple.count
    samples: bool
    decodes: bool = False
    enters: bool = False
    scored_before: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """Sequences that decode together, sweep after sweep, for as long as nobody comes or goes.

    offsets: one a sequence; at turn number t, counted from 1, it runs the token at position offset + t.
    """

    sequences: tuple[Sequence, ...]
    offsets: tuple[int, ...]


NOBODY = Cohort((), ())


@dataclass(frozen=True, slots=True)
class Sweep:
    """What runs: a cohort that decodes, at which turn, and pieces of the prompts of others.

    A sweep must write the keys of all its tokens in a layer before any of them attends there: a sequence may find in the prefix cache
    what another one computes in the same sweep.
    """

    cohort: Cohort
    turn: int
    pieces: tuple[Share, ...]

    @property
    def shares(self) -> tuple[Share, ...]:
        """What every sequence runs: those that decode first, each sequence once."""
        cohort, turn = self.cohort, self.turn
        decodes = [Share(one, offset + turn, 1, True, True) for one, offset in zip(cohort.sequences, cohort.offsets, strict=True)]
        return (*decodes, *self.pieces)

    @property
    def tokens(self) -> int:
        """Tokens that run."""
        return self.decoding + sum(piece.count for piece in self.pieces)

    @property
    def decoding(self) -> int:
        """Sequences whose one token continues what an earlier sweep sampled."""
        return len(self.cohort.sequences)
