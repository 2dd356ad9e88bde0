"""Admission by groups: zigzag, diagonal and row order. Nobody is ever preempted: who enters has pages until its limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from inferometer.schedule.batch import Batch
from inferometer.schedule.life import Life, peak_pages
from inferometer.schedule.sequence import Sequence

GROUP_SIZE = 8
"""Requests a group, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Zigzag:
    """A block of groups enters together; all its prompts are computed, then all decode in every sweep until all have ended.

    A group is up to group_size requests from the front of the queue. num_groups: most groups of a block, None for as many as there are
    seats and pages for, each request counted with the pages it holds at its limit.
    """

    group_size: int = GROUP_SIZE
    num_groups: int | None = None
    name: ClassVar[str] = "zigzag"

    def plan(self, batch: Batch) -> None:
        """Puts the coming sweep together."""
        if not batch.running:
            groups = 0
            spare = batch.pool.pages
            while groups != self.num_groups and batch.waiting:
                group = _group(batch, self.group_size)
                if groups and (len(group) > batch.free_seats or _most_pages(group) > spare):
                    break
                group = _fitting(group, spare)
                _admit(batch, group)
                spare -= _most_pages(group)
                groups += 1
        if batch.prefilling:
            _prefill(batch)
        else:
            batch.decode()


@dataclass(frozen=True, slots=True)
class Row:
    """One group at a time: its prompts are computed, then it decodes until all of it has ended."""

    group_size: int = GROUP_SIZE
    name: ClassVar[str] = "row"

    def plan(self, batch: Batch) -> None:
        """Puts the coming sweep together."""
        Zigzag(self.group_size, 1).plan(batch)


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Every sweep admits one group, whose prompts run beside the groups that decode: each is one token behind the group before it.

    A group is up to group_size requests from the front of the queue. It enters when the group before it has computed its prompts, fewer
    than num_groups groups are in flight (None for no limit), and in every sweep to come, should all go on to their limits, there are
    pages for all. The first of all is cut to what fits.

    prompt_tokens: where weights come in with every sweep, the tokens of prompts that a sweep can run meanwhile; more groups enter together
    as long as their prompts are no more than that, and end together. None where nothing comes: one group a sweep.
    """

    group_size: int = GROUP_SIZE
    num_groups: int | None = None
    prompt_tokens: int | None = None
    name: ClassVar[str] = "diagonal"

    def plan(self, batch: Batch) -> None:
        """Puts the coming sweep together."""
        alone = not batch.running
        batch.decode()
        if batch.waiting and not batch.prefilling:
            self._enter(batch, alone=alone)
        _prefill(batch)

    def _enter(self, batch: Batch, *, alone: bool) -> None:
        group = _group(batch, self.group_size)
        if alone:
            group = _fitting(group, batch.pool.pages)
        elif not (self._has_room(batch, 0) and len(group) <= batch.free_seats and _fit_beside(batch, group)):
            return
        entered, groups = list(group), 1
        _admit(batch, group)
        while self.prompt_tokens is not None and batch.waiting:
            group = _group(batch, self.group_size)
            together = [*entered, *group]
            if sum(sequence.pending for sequence in together) > min(self.prompt_tokens, batch.left):
                break
            if not (self._has_room(batch, groups) and len(group) <= batch.free_seats and _fit_beside(batch, together)):
                break
            entered, groups = together, groups + 1
            _admit(batch, group)

    def _has_room(self, batch: Batch, entered: int) -> bool:
        return self.num_groups is None or len({sequence.group for sequence in batch.decoding}) + entered < self.num_groups


def _group(batch: Batch, size: int) -> list[Sequence]:
    return batch.waiting.first(min(size, batch.seats))


def _most_pages(group: Iterable[Sequence]) -> int:
    return sum(sequence.most_pages for sequence in group)


def _fitting(group: list[Sequence], pages: int) -> list[Sequence]:
    """Those at the front of the group that fit in so many pages together, whatever becomes of them."""
    count = 0
    for sequence in group:
        pages -= sequence.most_pages
        if pages < 0:
            break
        count += 1
    return group[:count]


def _admit(batch: Batch, group: list[Sequence]) -> None:
    for sequence in group:
        sequence.group = group[0].arrival
        batch.admit(sequence)


def _prefill(batch: Batch) -> None:
    """Runs as much of the prompts, in order, as the sweep has room for."""
    for sequence in list(batch.prefilling.values()):
        if not batch.left:
            break
        batch.attach(sequence)
        batch.prefill(sequence, batch.left)


def _fit_beside(batch: Batch, group: list[Sequence]) -> bool:
    """Whether there are pages for the group and all that decode, this sweep's token included, until the last of them ends."""
    running = batch.decoding
    if _most_pages(running) + _most_pages(group) <= batch.pool.pages:
        return True
    lives = [Life(sequence.computed, sequence.remaining) for sequence in running]
    prompts = sum(sequence.length for sequence in group)
    if prompts <= batch.left:
        lives += [Life(sequence.length, sequence.remaining - 1) for sequence in group]
    else:
        # The prompts take several sweeps. How they share them out is not foreseen here: each counts in full from the start, for the
        # longest that they can take beside all that decode.
        sweeps = _most_sweeps([sequence.pending for sequence in group], max(batch.left - len(group) + 1, 1), batch.pool.page_size)
        last = [sequence.prompt + sequence.limit - 1 for sequence in group]
        lives += [Life(tokens, sequence.remaining + sweeps - 2, growth=0) for tokens, sequence in zip(last, group, strict=True)]
    return peak_pages(lives, batch.pool.page_size) <= batch.pool.pages


def _most_sweeps(prompts: list[int], tokens: int, page_size: int) -> int:
    """The most sweeps that prompts of so many tokens take one after another, if each sweep has at least `tokens` for them.

    A piece that is not the last ends with a page if it can (`Batch.prefill`), so a sweep with less than a page of tokens does not always
    run them all: a page takes so many sweeps as it would alone. With more, sweeps run whole pages. What a sweep leaves behind one prompt
    may begin the next in the middle of a page, which takes until the page's end to make up for.
    """
    page = -(-page_size // tokens)  # sweeps for a page
    whole = max(tokens // page_size * page_size, page_size)  # tokens in so many sweeps
    sweeps = page * (len(prompts) - 1)
    for prompt in prompts:
        before = max(prompt - max(tokens, page_size), 0)
        rest = prompt - -(-before // whole) * whole
        sweeps += -(-before // whole) * page + max(-(-rest // tokens), 1)
    return sweeps
