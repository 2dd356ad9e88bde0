"""What a run asks of memory: how many sequences, how long, and what lies elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A batch of `batch` sequences of `length` tokens, each continued by `generated` tokens (0: a forward alone).

    group: sequences that pass through a layer together, where that is not the whole batch. staggered: groups of that size each of which is
    a token behind the group before it, None where all of the batch are equally far. unfilled: the share of the generated tokens
    that the cache has not got when the run is stopped. streamed: the share of the layers' weights that is elsewhere until it is needed.
    hosted: the same of the cache.
    """

    batch: int
    length: int
    generated: int = 0
    loss: bool = False
    group: int | None = None
    staggered: int | None = None
    unfilled: float = 0.0
    streamed: float = 0.0
    hosted: float = 0.0

    def tokens_each(self, page_size: int | None) -> int:
        """Tokens that a sequence's cache holds at its end, none for a forward alone.

        page_size: tokens of a page, of which it holds whole ones, the last token's keys not being written; None for a cache that has
        no pages.
        """
        if not self.generated:
            return 0
        if page_size is None:
            return self.length + round(self.generated * (1.0 - self.unfilled))
        return -(-(self.length + self.generated - 1) // page_size) * page_size

    def held_tokens(self, page_size: int | None, sweep_tokens: int | None) -> int:
        """Tokens of all caches at the moment when they are the most."""
        if self.staggered is None or not self.generated or page_size is None:
            return self.holding(sweep_tokens) * self.tokens_each(page_size)
        # Consecutive ages; those of the oldest groups, which are about to end, are the most.
        youngest, oldest = max(0, self.generated - self.staggered), self.generated - 1
        pages = _pages_up_to(self.length + oldest, page_size) - _pages_up_to(self.length + youngest - 1, page_size)
        return self.together * pages * page_size

    def holding(self, sweep_tokens: int | None) -> int:
        """Sequences whose cache is held at once: with one token each, those of a sweep of at most so many tokens, who end with it."""
        if self.generated != 1 or sweep_tokens is None:
            return self.batch
        return min(self.batch, max(1, sweep_tokens // self.length))

    @property
    def together(self) -> int:
        """Sequences that pass through a layer at once."""
        return self.batch if self.group is None else min(self.group, self.batch)


def _pages_up_to(tokens: int, page_size: int) -> int:
    """Pages of caches of 1, 2 ... that many tokens, all together."""
    full, rest = divmod(tokens, page_size)
    return page_size * full * (full + 1) // 2 + rest * (full + 1)
