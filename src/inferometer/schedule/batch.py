"""The batch: the sequences that run together, their seats and pages, and what runs of them in the coming sweep."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from inferometer.schedule.decoders import Decoders
from inferometer.schedule.pages import PagePool, PagesExhaustedError
from inferometer.schedule.prefix import page_digest
from inferometer.schedule.queue import Queue
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import NOBODY, Cohort, Share, Sweep


class _Piece(NamedTuple):
    """Where a sequence's tokens of the coming sweep begin, and what was so before."""

    sequence: Sequence
    start: int
    enters: bool
    scored_before: int


class Batch:
    """What an admission decides over: who waits, who runs, what is free; and the sweep it puts together.

    A running sequence either has tokens to compute before its next one can be sampled (`prefilling`, by request id) or decodes, one token
    a sweep (`decoding`); both in the order they entered. It holds exactly the pages that its computed tokens fill.

    seats: most sequences that run together. sweep_tokens: most tokens of a sweep. As every running sequence must be able to run a token,
    there are never more seats than that.
    """

    def __init__(self, pool: PagePool, *, seats: int, sweep_tokens: int, prefix_caching: bool) -> None:
        self.pool = pool
        self.seats = min(seats, sweep_tokens)
        self.sweep_tokens = sweep_tokens
        self.prefix_caching = prefix_caching
        self.waiting = Queue()
        self.prefilling: dict[int, Sequence] = {}
        self.decoding = Decoders(pool.page_size)
        self.left = sweep_tokens
        """Tokens that the coming sweep still has room for."""
        self.preemptions = 0
        self.hit_pages = 0
        self._free_seats = list(range(self.seats))  # a heap: lowest first
        self._cohort: Cohort = NOBODY  # who decodes in the coming sweep
        self._pieces: dict[int, _Piece] = {}
        self._changed: set[int] = set()  # ids whose row of the block table lacks pages before the next token
        self._exhausted: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences that have a seat."""
        return self.seats - len(self._free_seats)

    @property
    def free_seats(self) -> int:
        """Sequences that can still enter."""
        return len(self._free_seats)

    def sequences(self) -> list[Sequence]:
        """All that have a seat."""
        return [*self.prefilling.values(), *self.decoding]

    def find(self, sequence: Sequence) -> list[int]:
        """The published pages that go on where the sequence's computed tokens end, up to the last token, which is always computed.

        Prompt positions whose log-probabilities are asked for and missing are computed as well.
        """
        size = self.pool.page_size
        if not self.prefix_caching or sequence.shadowed or sequence.computed % size:
            return []
        known = sequence.length - 1
        if sequence.request.params.prompt_logprobs and sequence.scored < sequence.prompt:
            known = min(known, sequence.scored)
        found = []
        for index in range(sequence.computed // size, known // size):
            page = self.pool.find(self._digest(sequence, index))
            if page is None:
                break
            found.append(page)
        return found

    def attach(self, sequence: Sequence) -> None:
        """Takes over what `find` finds in place of computing it."""
        found = self.find(sequence)
        if not found:
            return
        self.pool.share(found)
        self.hit_pages += len(found)
        sequence.pages += found
        sequence.published = len(sequence.pages)
        before = max(sequence.reached, sequence.computed)
        sequence.computed = len(sequence.pages) * self.pool.page_size
        sequence.cached += max(min(sequence.computed, sequence.prompt) - before, 0)
        self._changed.add(sequence.request.id)

    def admit(self, sequence: Sequence) -> None:
        """Gives a waiting sequence, all of whose tokens are read, a seat and what the prefix cache has of it."""
        self.waiting.remove(sequence)
        sequence.seat = heappop(self._free_seats)
        self.prefilling[sequence.request.id] = sequence
        self._changed.add(sequence.request.id)
        if self.prefix_caching:
            self.attach(sequence)

    def decode(self) -> None:
        """Lets every sequence that decodes run its newest token. Raises PagesExhaustedError, and nobody goes on, if pages are too few."""
        if self.decode_pages() > self.pool.available:
            raise PagesExhaustedError(f"{self.decode_pages()} sequences begin a page, {self.pool.available} are available")
        for sequence in self.decoding.beginning:  # one by one, so that an interrupt finds each page with its sequence
            sequence.pages += self.pool.take(1)
        self._exhausted += self.decoding.advance()
        self._cohort = self.decoding.cohort
        self.left -= len(self.decoding)

    def decode_pages(self) -> int:
        """Pages that `decode` will take."""
        return self.decoding.beginners

    def prefill(self, sequence: Sequence, most: int) -> None:
        """Lets a sequence that does not decode yet run up to `most` tokens, or so many more, as far as the sweep has room for them.

        A piece that is not the last one ends with a page if it can, and goes on only to the end of another: sequences that begin alike
        then find each other's pages. Raises PagesExhaustedError.
        """
        key, size = sequence.request.id, self.pool.page_size
        start, length = sequence.computed, sequence.length
        stop = min(start + min(most, self.left), length)
        if stop < length:
            aligned = stop - stop % size
            if aligned > start:
                stop = aligned
            elif key in self._pieces and not start % size:
                return
        if stop <= start:
            return
        if key not in self._pieces:
            self._pieces[key] = _Piece(sequence, start, key in self._changed, sequence.scored)
            self._changed.discard(key)
        missing = -(-stop // size) - len(sequence.pages)
        if missing:
            sequence.pages += self.pool.take(missing)
        sequence.computed = stop
        if stop > sequence.scored:
            sequence.scored = min(stop, sequence.prompt)
        self.left -= stop - start
        if self.prefix_caching:
            self.publish(sequence)
        if stop == length:
            del self.prefilling[key]
            self.decoding.join(sequence)
            if length + 1 == sequence.longest:
                self._exhausted.append(sequence)

    def close(self) -> Sweep | None:
        """The sweep that was put together, None if nothing runs; the next one begins."""
        shares = []
        for piece in self._pieces.values():
            sequence = piece.sequence
            count = sequence.computed - piece.start
            samples = sequence.request.id not in self.prefilling
            shares.append(Share(sequence, piece.start, count, samples, False, piece.enters, piece.scored_before))
        sweep = Sweep(self._cohort, self.decoding.turn, tuple(shares)) if shares or self._cohort.sequences else None
        self._cohort = NOBODY
        self._pieces.clear()
        self.left = self.sweep_tokens
        return sweep

    def preempt(self, sequence: Sequence) -> None:
        """Takes the seat and pages from a running sequence; it waits until it can be recomputed."""
        self.leave(sequence)
        sequence.preempted += 1
        sequence.overtaken = 0
        self.preemptions += 1
        self.waiting.give_back(sequence)

    def retire(self) -> None:
        """Takes seats and pages from those whose last permitted token is launched: nothing of theirs is needed any longer."""
        for sequence in self._exhausted:
            if sequence.seat is not None:  # else it left early: its last token was read, or it was aborted
                self.leave(sequence)
        self._exhausted.clear()

    def leave(self, sequence: Sequence) -> None:
        """Gives back the seat and pages of a running sequence. What sweeps under way write there, later sweeps overwrite later."""
        assert sequence.seat is not None
        key = sequence.request.id
        if self.prefilling.pop(key, None) is None:
            self.decoding.leave(sequence)
        self.publish(sequence)
        self.pool.release(sequence.pages)
        heappush(self._free_seats, sequence.seat)
        sequence.seat = None
        sequence.pages = []
        sequence.reached = max(sequence.reached, sequence.computed)
        sequence.computed = 0
        sequence.published = 0
        sequence.shadowed = False
        self._changed.discard(key)

    def publish(self, sequence: Sequence) -> None:
        """Lets the sequence's full pages be found, as far as the host knows their tokens.

        Only behind pages that are found themselves, so that nobody holds a page without those before it.
        """
        if not self.prefix_caching or sequence.shadowed:
            return
        full = min(len(sequence.tokens), sequence.computed) // self.pool.page_size
        for index in range(sequence.published, full):
            if not self.pool.publish(sequence.pages[index], self._digest(sequence, index)):
                sequence.shadowed = True
                return
            sequence.published = index + 1

    def _digest(self, sequence: Sequence, index: int) -> bytes:
        """The digest of the sequence's page number `index`, whose tokens the host knows; digests[0] stands before the first page."""
        digests, size = sequence.digests, self.pool.page_size
        for page in range(len(digests) - 1, index + 1):
            digests.append(page_digest(digests[-1], sequence.tokens[page * size : (page + 1) * size]))
        return digests[index + 1]
