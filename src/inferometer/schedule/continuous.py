"""Continuous admission: requests enter as room comes free, prompts in pieces beside those that decode."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from inferometer.schedule.batch import Batch
from inferometer.schedule.sequence import Sequence

HORIZON = 32
"""Sweeps for which there should be pages for all when one more enters: less, and sequences are preempted soon after; more, and pages
lie idle that sequences which end early never fill."""

OVERTAKES = 64
"""How many may enter before one that waits for pages; then nobody does."""

WINDOW = 16
"""How many that wait for pages are looked past for one that fits."""

_ARRIVAL = attrgetter("arrival")


@dataclass(frozen=True, slots=True)
class Continuous:
    """Every sequence whose prompt is computed decodes in each sweep; what is left of the sweep's tokens goes to prompts.

    Prompts run in order of arrival. One that needs more than is left gets half of that, so that those behind it go on as well; what
    nobody wants goes back to the oldest.

    prompt_tokens: the most tokens of prompts in a sweep in which anyone decodes, however many do; None for all that it has room for.

    A request enters once there are pages for all its tokens and for those that it and all that run generate in the next `horizon` sweeps.
    While the head of the queue waits for pages, later requests that fit enter before it, but no more than OVERTAKES of them, and none
    before one that was preempted.

    When pages run out, the youngest running sequence gives its own back and is computed again later. The oldest goes on in every sweep,
    so everyone's turn comes.
    """

    horizon: int = HORIZON
    prompt_tokens: int | None = None
    name: ClassVar[str] = "continuous"

    def plan(self, batch: Batch) -> None:
        """Puts the coming sweep together."""
        _make_room(batch, self)
        batch.decode()
        batch.left = self.left_for_prompts(batch.left, len(batch.decoding))
        pieces = []
        if batch.prefilling:
            for sequence in sorted(batch.prefilling.values(), key=_ARRIVAL):
                if not batch.left:
                    break
                batch.attach(sequence)
                batch.prefill(sequence, min(_portion(batch, sequence.pending, batch.left), _room(batch, sequence)))
                pieces.append(sequence)
        if batch.waiting:
            pieces += _enter(batch, self.horizon)
        for sequence in pieces:
            if not batch.left:
                break
            # What another one computes in this very sweep is found in the next.
            if sequence.request.id in batch.prefilling and not batch.find(sequence):
                batch.prefill(sequence, min(batch.left, _room(batch, sequence)))

    def left_for_prompts(self, left: int, decoding: int) -> int:
        """How many of the tokens that a sweep has `left` beside `decoding` sequences prompts may have."""
        return left if self.prompt_tokens is None or not decoding else min(left, self.prompt_tokens)


def _portion(batch: Batch, pending: int, left: int) -> int:
    """How many of its `pending` tokens a prompt may run where the sweep has room for `left`: half of that if not all, but no scrap."""
    if pending <= left:
        return pending
    return min(left, max(left - left // 2, batch.sweep_tokens // 16, _scrap(batch)))


def _scrap(batch: Batch) -> int:
    """Tokens that are worth a piece of a prompt: a page, unless sweeps are so small that nobody else would get any."""
    return min(batch.pool.page_size, batch.sweep_tokens // 4)


def _room(batch: Batch, sequence: Sequence) -> int:
    """Tokens that the sequence can run with its own pages and all that are available."""
    pool = batch.pool
    return (len(sequence.pages) + pool.available) * pool.page_size - sequence.computed


def _make_room(batch: Batch, order: Continuous) -> None:
    """Preempts the youngest until the oldest can run its piece and all that decode have a place for their token."""
    pool = batch.pool
    if not batch.prefilling and batch.decode_pages() <= pool.available:
        return
    while batch.running:
        running = batch.sequences()
        oldest = min(running, key=_ARRIVAL)
        needed = batch.decode_pages()
        if oldest.request.id in batch.prefilling:
            batch.attach(oldest)
            decoding = len(batch.decoding)
            portion = _portion(batch, oldest.pending, order.left_for_prompts(batch.left - decoding, decoding))
            needed += pool.pages_of(oldest.computed + portion) - len(oldest.pages)
        if needed <= pool.available:
            return
        batch.preempt(max(running, key=_ARRIVAL))


def _enter(batch: Batch, horizon: int) -> list[Sequence]:
    """Admits who fits, in order, and runs a first piece of each."""
    pool = batch.pool
    entered: list[Sequence] = []
    if not batch.free_seats or not batch.left:
        return entered
    spare = pool.available - sum(_promised(batch, sequence, horizon) for sequence in batch.sequences())
    scrap = _scrap(batch)
    skipped: list[Sequence] = []
    while batch.free_seats and batch.left:
        sequence = batch.waiting.at(len(skipped))
        if sequence is None or sequence.unread:
            break
        found = batch.find(sequence)
        needed, pending = _promised(batch, sequence, horizon), sequence.length
        if found:
            needed += pool.unused(found) - len(found)
            pending -= len(found) * pool.page_size
        if needed > spare:
            skipped.append(sequence)
            if sequence.preempted or sequence.overtaken == OVERTAKES or len(skipped) == WINDOW:
                break
            continue
        if batch.left < min(pending, scrap):
            break
        spare -= needed
        for earlier in skipped:
            earlier.overtaken += 1
        batch.admit(sequence)
        batch.prefill(sequence, _portion(batch, pending, batch.left))
        entered.append(sequence)
    return entered


def _promised(batch: Batch, sequence: Sequence, horizon: int) -> int:
    """Pages that a sequence still needs for the tokens it has and those of the next `horizon` sweeps."""
    return min(batch.pool.pages_of(sequence.length + horizon), sequence.most_pages) - len(sequence.pages)
