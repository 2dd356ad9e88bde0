"""A step: what one pass through the layers is asked to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

Logits = Literal["last", "all", "none"]


@dataclass(frozen=True, slots=True)
class Share:
    """`count` neighbouring sequences of a step that are alike: each brings `queries` tokens after `before` tokens of context."""

    queries: int
    before: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.queries < 1 or self.before < 0 or self.count < 1:
            raise ValueError(f"a share needs at least one sequence and query token and no negative context, not {self}")

    @property
    def context(self) -> int:
        """Tokens of each sequence once the step has run."""
        return self.before + self.queries

    def within(self, window: int, *, causal: Literal["full", "half"]) -> int:
        """Query-key pairs of one sequence whose queries look back at `window` tokens, their own included."""
        if causal == "full":
            return self.queries * min(self.context, window + self.queries - 1)
        # Queries whose keys are fewer than the window see all of them: before + 1, before + 2, ...
        growing = max(0, min(self.queries, window - self.before))
        return growing * self.before + growing * (growing + 1) // 2 + (self.queries - growing) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Which tokens of which sequences run in one pass, and what is wanted of them.

    logits: after each sequence's last token, after every token, or none (an encoder, or a prompt's chunk that is not its last).
    loss: the next-token cross-entropy of all positions is computed too. cached: keys and values go to a KV cache.
    pooled: an encoder's pooler sees each sequence's first token.
    Raises ValueError where these contradict each other.
    """

    shares: tuple[Share, ...]
    logits: Logits = "last"
    loss: bool = False
    cached: bool = True
    pooled: bool = False

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("a step needs at least one sequence")
        if self.loss and self.logits != "all":
            raise ValueError("a loss needs the logits of all positions")
        if not self.cached and any(share.before for share in self.shares):
            raise ValueError("a sequence with earlier tokens needs the cache that holds them")

    @property
    def sequences(self) -> int:
        """Sequences in the step."""
        return sum(share.count for share in self.shares)

    @property
    def tokens(self) -> int:
        """Query tokens in the step."""
        return sum(share.count * share.queries for share in self.shares)

    @property
    def context_tokens(self) -> int:
        """Tokens of all contexts before the step, whose keys and values it reads."""
        return sum(share.count * share.before for share in self.shares)

    def remembered(self, window: int) -> int:
        """Tokens of all contexts before the step that layers with such a window still look at."""
        return sum(share.count * min(share.before, window) for share in self.shares)

    @property
    def logit_rows(self) -> int:
        """Rows of logits that the step yields."""
        return {"last": self.sequences, "all": self.tokens, "none": 0}[self.logits]

    @property
    def distinct_positions(self) -> int:
        """Different positions among the query tokens: rows of a position table that are read."""
        covered, end = 0, 0
        for start, stop in sorted({(share.before, share.context) for share in self.shares}):
            covered += max(0, stop - max(start, end))
            end = max(end, stop)
        return covered

    def attended(self, *, causal: Literal["full", "half"], window: int | None = None) -> int:
        """Query-key pairs over all sequences, for one head. window: so many keys at most for each query.

        "half" counts a key only for the queries that may see it (the exact triangle); "full" counts every key of the context for
        every query, as torch's FLOP counter does.
        """
        if window is not None:
            return sum(share.count * share.within(window, causal=causal) for share in self.shares)
        if causal == "full":
            return sum(share.count * share.queries * share.context for share in self.shares)
        return sum(share.count * (share.queries * share.before + share.queries * (share.queries + 1) // 2) for share in self.shares)

    def padded(self) -> Step:
        """The step that one call over a contiguous cache executes: neighbours that query one token attend to the longest context."""
        shares: list[Share] = []
        for single, run in groupby(self.shares, lambda share: share.queries == 1 and share.before > 0):
            members = list(run)
            if single:
                longest = max(share.before for share in members)
                members = [Share(1, longest, sum(share.count for share in members))]
            shares.extend(members)
        return replace(self, shares=tuple(shares))


def forward(batch: int, length: int, *, logits: Logits = "all", loss: bool = False) -> Step:
    """One pass over `batch` whole sequences of `length` tokens, without a cache."""
    return Step(shares=(Share(length, 0, batch),), logits=logits, loss=loss, cached=False)


def encode(batch: int, length: int, *, pooled: bool = False) -> Step:
    """An encoder's pass over `batch` whole sequences of `length` tokens."""
    return Step(shares=(Share(length, 0, batch),), logits="none", cached=False, pooled=pooled)


def prefill(batch: int, length: int) -> Step:
    """`batch` prompts of `length` tokens enter the cache; logits for the first generated token of each."""
    return Step(shares=(Share(length, 0, batch),))


def decode(contexts: Iterable[int]) -> Step:
    """One token for each sequence, whose cache holds so many tokens before the step."""
    return Step(shares=_alike((1, before) for before in contexts))


def decode_equal(batch: int, context: int) -> Step:
    """One token for each of `batch` sequences with `context` tokens in the cache: `decode` of equal contexts, however many."""
    return Step(shares=(Share(1, context, batch),))


def mixed(prompts: Sequence[tuple[int, int]], contexts: Iterable[int]) -> Step:
    """Prompt chunks, each (tokens, tokens cached before), and decoding sequences, each with so many tokens cached, in one pass."""
    return Step(shares=_alike([*prompts, *((1, before) for before in contexts)]))


def _alike(sequences: Iterable[tuple[int, int]]) -> tuple[Share, ...]:
    return tuple(Share(queries, before, sum(1 for _ in run)) for (queries, before), run in groupby(sequences))
