"""The batch: the sequences that run together, their seats and pages, and what runs of them in the coming sweep."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from inferometer.schedule.pages import PagePool
from inferometer.schedule.prefix import page_digest
from inferometer.schedule.queue import Queue
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Share, Sweep


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where a sequence's tokens of the coming sweep begin, and what was so before."""

    sequence: Sequence
    start: int
    enters: bool
    scored_before: int


class Batch:
    """What an admission decides over: who waits, who runs, what is free; and the sweep it puts together.

    A running sequence either has tokens to compute before its next one can be sampled (`prefilling`) or decodes, one token a sweep
    (`decoding`); both by request id, in the order they entered. It holds exactly the pages that its computed tokens fill.

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
        self.decoding: dict[int, Sequence] = {}
        self.left = sweep_tokens
        """Tokens that the coming sweep still has room for."""
        self.preemptions = 0
        self.hit_pages = 0
        self._free_seats = list(range(self.seats))  # a heap: lowest first
        self._decodes: list[Share] = []
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
        return [*self.prefilling.values(), *self.decoding.values()]

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
        sequence.computed = len(sequence.pages) * self.pool.page_size
        sequence.cached += max(min(sequence.computed, sequence.prompt) - sequence.reached, 0)
        sequence.reached = max(sequence.reached, sequence.computed)
        self._changed.add(sequence.request.id)

    def admit(self, sequence: Sequence) -> None:
        """Gives a waiting sequence, all of whose tokens are read, a seat and what the prefix cache has of it."""
        self.waiting.remove(sequence)
        sequence.seat = heappop(self._free_seats)
        self.prefilling[sequence.request.id] = sequence
        self._changed.add(sequence.request.id)
        self.attach(sequence)

    def decode(self) -> None:
        """Lets every sequence that decodes run its newest token. Raises PagesExhaustedError."""
        size = self.pool.page_size
        for sequence in self.decoding.values():
            start = sequence.computed
            if start == len(sequence.pages) * size:
                sequence.pages += self.pool.take(1)
            sequence.computed = sequence.reached = start + 1
            sequence.launched += 1
            if sequence.launched == sequence.limit:
                self._exhausted.append(sequence)
            self._decodes.append(Share(sequence, start, 1, True, True))
        self.left -= len(self.decoding)

    def decode_pages(self) -> int:
        """Pages that `decode` will take."""
        size = self.pool.page_size
        return sum(sequence.computed == len(sequence.pages) * size for sequence in self.decoding.values())

    def prefill(self, sequence: Sequence, most: int) -> None:
        """Lets a sequence that does not decode yet run up to `most` tokens, or so many more, as far as the sweep has room for them.

        A piece that is not the last one ends with a page if it can, and goes on only to the end of another: sequences that begin alike
        then find each other's pages. Raises PagesExhaustedError.
        """
        key = sequence.request.id
        size = self.pool.page_size
        count = min(most, self.left, sequence.pending)
        stop = sequence.computed + count
        if count < sequence.pending:
            aligned = stop - stop % size
            if aligned > sequence.computed:
                stop = aligned
            elif key in self._pieces and not sequence.computed % size:
                return
            count = stop - sequence.computed
        if count < 1:
            return
        if key not in self._pieces:
            self._pieces[key] = _Piece(sequence, sequence.computed, key in self._changed, sequence.scored)
            self._changed.discard(key)
        sequence.pages += self.pool.take(self.pool.pages_of(stop) - len(sequence.pages))
        sequence.computed = stop
        sequence.reached = max(sequence.reached, stop)
        sequence.scored = max(sequence.scored, min(stop, sequence.prompt))
        self.left -= count
        self.publish(sequence)
        if stop == sequence.length:
            sequence.launched += 1
            del self.prefilling[key]
            self.decoding[key] = sequence
            if sequence.launched == sequence.limit:
                self._exhausted.append(sequence)

    def close(self) -> Sweep | None:
        """The sweep that was put together, None if nothing runs; the next one begins."""
        for piece in self._pieces.values():
            sequence = piece.sequence
            count = sequence.computed - piece.start
            samples = sequence.request.id not in self.prefilling
            self._decodes.append(Share(sequence, piece.start, count, samples, False, piece.enters, piece.scored_before))
        sweep = Sweep(tuple(self._decodes)) if self._decodes else None
        self._decodes.clear()
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
        self.publish(sequence)
        self.pool.release(sequence.pages)
        heappush(self._free_seats, sequence.seat)
        sequence.seat = None
        sequence.pages = []
        sequence.computed = 0
        sequence.published = 0
        sequence.shadowed = False
        key = sequence.request.id
        self._changed.discard(key)
        if self.prefilling.pop(key, None) is None:
            del self.decoding[key]

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
