"""A sweep that has been launched and not yet read."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import compress

import torch

from inferometer.engine.prompt_scores import Scores
from inferometer.engine.sampled import Fetched, Tokens
from inferometer.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Flight:
    """What a sweep will have brought: a token for each of `sampled`, and scores of prompt tokens.

    fetched: a copy for each of the passes whose sequences sample, one after another; empty if none do. arrived: recorded behind the
    copies of the scores, None where nothing is under way.
    """

    sampled: tuple[Sequence, ...]
    fetched: tuple[Fetched, ...]
    scores: tuple[Scores, ...]
    arrived: torch.cuda.Event | None

    @property
    def arrivals(self) -> tuple[torch.cuda.Event, ...]:
        """What is recorded behind all that is under way from a device."""
        return tuple(event for event in (self.arrived, *(part.arrived for part in self.fetched)) if event is not None)

    def read(self) -> Tokens:
        """The tokens. Waits until they are there, and for nothing that was launched after them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        if len(self.fetched) == 1:
            return self.fetched[0].read()
        tokens = Tokens([], [], [])
        for part in self.fetched:
            token_ids, logprobs, tops = part.read()
            tokens.token_ids.extend(token_ids)
            tokens.logprobs.extend(logprobs)
            tokens.tops.extend(tops)
        return tokens

    def wanted(self, tokens: Tokens) -> tuple[Many[Sequence], Tokens]:
        """The sequences that still want theirs of the tokens that were read, and those: others were aborted, or had their last token
        read when this sweep was already under way.
        """
        wanted = [not sequence.ended for sequence in self.sampled]
        if all(wanted):
            return self.sampled, tokens
        token_ids, logprobs, tops = tokens
        kept = Tokens(list(compress(token_ids, wanted)), list(compress(logprobs, wanted)), list(compress(tops, wanted)))
        return list(compress(self.sampled, wanted)), kept
