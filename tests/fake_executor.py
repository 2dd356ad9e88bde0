"""An executor without a model: it keeps what a device would keep, and checks that every sweep reads what it should.

A key is a number that depends on all tokens up to its own, as the keys of a real model do. Keys lie in pages, newest tokens at seats, and
the block table learns of pages only what a sweep says of them, so that wrong sharing, early reuse, lost writes and stale tables all show.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain

from inferometer.schedule.admission import Admission
from inferometer.schedule.completion import FinishReason
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.finish import finish_reason
from inferometer.schedule.pages import PagePool
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.scheduler import Scheduler
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Share, Sweep

EOS = 0


def make_request(
    id: int,  # noqa: A002
    prompt: int | tuple[int, ...],
    new: int,
    *,
    end_every: int = 0,
    prompt_logprobs: bool = False,
) -> Request:
    """prompt: token ids, or how many of the request's own. end_every: about how many tokens it generates before EOS, 0 for never."""
    token_ids = prompt if isinstance(prompt, tuple) else tuple(1000 * (id + 1) + i for i in range(prompt))
    params = SamplingParams(max_new_tokens=new, prompt_logprobs=prompt_logprobs)
    return Request(id, token_ids, params, seed=end_every, eos_token_ids=(EOS,) if end_every else ())


def key_after(before: int, token_id: int) -> int:
    """The key of a token, whose tokens before it led to the key `before`."""
    return hash((before, token_id))


def sampled_after(request: Request, key: int) -> int:
    """The next token: a function of the request and all its tokens so far."""
    drawn = hash((key, request.id)) % 997
    return EOS if request.eos_token_ids and drawn % request.seed == 0 else 1 + drawn


def alone(request: Request) -> tuple[list[int], FinishReason]:
    """What the request generates without any company."""
    key = 0
    for token_id in request.prompt_token_ids:
        key = key_after(key, token_id)
    generated: list[int] = []
    while True:
        generated.append(sampled_after(request, key))
        reason = finish_reason(request, generated[-1], len(generated))
        if reason is not None:
            return generated, reason
        key = key_after(key, generated[-1])


@dataclass
class Truth:
    """What really became of a sequence: all its tokens, read or not, and the key of each; what was read of it."""

    sequence: Sequence
    tokens: list[int]
    keys: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    first_sweep: int | None = None
    last_sweep: int | None = None
    aborted: bool = False

    def key(self, position: int) -> int:
        while len(self.keys) <= position:
            self.keys.append(key_after(self.keys[-1] if self.keys else 0, self.tokens[len(self.keys)]))
        return self.keys[position]


class FakeExecutor:
    """Runs a scheduler's sweeps, and reads each so many sweeps late.

    sweeps: all that were launched. peaks: pages in use in each.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        pages: int,
        page_size: int = 16,
        max_batch: int = 256,
        sweep_tokens: int = 8192,
        prefix_caching: bool = True,
        lookahead: int = 0,
        strict: bool = True,
    ) -> None:
        self.pool = PagePool(pages, page_size)
        self.scheduler = Scheduler(
            self.pool, admission, max_batch=max_batch, sweep_tokens=sweep_tokens, prefix_caching=prefix_caching, salt=self._salt
        )
        self.max_batch = max_batch
        self.sweep_tokens = sweep_tokens
        self.lookahead = lookahead
        self.strict = strict
        self.truths: dict[int, Truth] = {}
        self.sweeps: list[list[tuple[int, int, int]]] = []  # (request id, start, count) of each share
        self.used: list[int] = []  # pages in use in each sweep
        self._keys: list[list[int | None]] = [[None] * page_size for _ in range(pages)]
        self._table: list[dict[int, int]] = [{} for _ in range(max_batch)]
        self._newest: list[int | None] = [None] * max_batch
        self._flights: deque[list[tuple[Truth, int]]] = deque()

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.truths[request.id] = Truth(self.scheduler.add(request), list(request.prompt_token_ids))

    def abort(self, request_id: int) -> None:
        self.scheduler.abort(request_id)
        truth = self.truths.get(request_id)
        if truth is not None and truth.reason is None:
            truth.aborted = True
            assert truth.sequence.ended

    def step(self) -> Sweep | None:
        """Launches a sweep if there is one, and reads the one whose turn it is."""
        before = [sequence for sequence in self._seated() if sequence.remaining]
        sweep = self.scheduler.next()
        if before and self.strict:  # whoever is the oldest keeps its seat and goes on
            oldest = min(before, key=lambda sequence: sequence.arrival)
            assert oldest.seat is not None
            if isinstance(self.scheduler.admission, Continuous):
                assert sweep is not None
                assert any(share.sequence is oldest for share in sweep.shares)
        if sweep is None:
            assert self._flights or not self.scheduler.has_work, "nothing can run, and nothing is to be read that would change that"
        else:
            self._launch(sweep)
        if self._flights and (sweep is None or len(self._flights) > self.lookahead):
            self._read()
        self.check()
        return sweep

    def run(self, most_sweeps: int = 100_000) -> None:
        """Until nothing is left."""
        while self.scheduler.has_work or self._flights:
            self.step()
            assert len(self.sweeps) <= most_sweeps, "someone starves"

    def check(self) -> None:
        if self.strict:
            self.scheduler.check_pages()
            seats = [sequence.seat for sequence in self._seated()]
            assert len(set(seats)) == len(seats) == self.scheduler.running <= self.max_batch
            for sequence in self._seated():  # found pages only behind found ones, so that none outlives the one before it
                found = [page in self.pool._digest_of for page in sequence.pages]
                assert found == sorted(found, reverse=True)

    def check_finished(self) -> None:
        """All that was not aborted generated what it does alone, and nothing is held any longer."""
        assert not self.scheduler.has_work
        assert self.scheduler.waiting == self.scheduler.running == self.pool.in_use == 0
        self.scheduler.check_pages()
        for truth in self.truths.values():
            request = truth.sequence.request
            expected, reason = alone(request)
            if truth.aborted:
                assert truth.read == expected[: len(truth.read)]
                continue
            assert truth.read == expected
            assert truth.reason == reason
            assert truth.sequence.tokens == [*request.prompt_token_ids, *expected]
            assert truth.sequence.seat is None
            if request.params.prompt_logprobs:
                assert truth.scored == list(range(len(request.prompt_token_ids) - 1))

    def _seated(self) -> list[Sequence]:
        return [truth.sequence for truth in self.truths.values() if truth.sequence.seat is not None]

    def _salt(self, request: Request) -> bytes:
        return b""

    def _launch(self, sweep: Sweep) -> None:
        shares = sweep.shares
        assert sweep.tokens <= self.sweep_tokens
        assert [share.decodes for share in shares] == [True] * sweep.decoding + [False] * (len(shares) - sweep.decoding)
        assert len({share.sequence.request.id for share in shares}) == len(shares) <= self.max_batch
        number = len(self.sweeps)
        self.sweeps.append([(share.sequence.request.id, share.start, share.count) for share in shares])
        self.used.append(self.pool.in_use)
        written: list[int] = []
        for share in shares:  # keys of all tokens are written before any is read
            written += self._write(share)
        assert len(set(written)) == len(written), "two sequences write to one page"
        flight = []
        for share in shares:
            truth = self.truths[share.sequence.request.id]
            truth.first_sweep = number if truth.first_sweep is None else truth.first_sweep
            truth.last_sweep = number
            self._attend(share, truth)
            scores = range(max(share.start, share.scored_before), min(share.start + share.count, share.sequence.prompt - 1))
            if share.sequence.request.params.prompt_logprobs:
                truth.scored += scores
            if share.samples:
                assert share.start + share.count == len(truth.tokens), "a token is sampled twice, or too early"
                assert not share.sequence.ended
                token_id = sampled_after(share.sequence.request, truth.key(len(truth.tokens) - 1))
                truth.tokens.append(token_id)
                assert share.sequence.seat is not None
                self._newest[share.sequence.seat] = token_id
                flight.append((truth, token_id))
            else:
                assert share.start + share.count < len(truth.tokens)
        self._flights.append(flight)

    def _write(self, share: Share) -> list[int]:
        """Writes a share's keys; the pages it writes to."""
        sequence, start, stop, size = share.sequence, share.start, share.start + share.count, self.pool.page_size
        truth, seat = self.truths[sequence.request.id], share.sequence.seat
        assert seat is not None
        assert share.count > 0
        assert not sequence.ended
        if share.decodes:
            token_ids = [self._newest[seat]]
            assert share.count == 1
        else:
            token_ids = list(sequence.tokens[start:stop])
        assert token_ids == truth.tokens[start:stop], "the tokens that run are not the sequence's own"
        if share.enters:
            self._table[seat] = dict(enumerate(sequence.pages[: -(-stop // size)]))
        else:
            for index in range(start // size, -(-stop // size)):
                self._table[seat][index] = sequence.pages[index]
        truth.key(stop - 1)
        written = [self._table[seat][index] for index in range(start // size, -(-stop // size))]
        for first, page in zip(range(start // size * size, stop, size), written, strict=True):
            begin, end = max(first, start), min(first + size, stop)
            self._keys[page][begin - first : end - first] = truth.keys[begin:end]
        return written

    def _attend(self, share: Share, truth: Truth) -> None:
        """Reads the keys of all positions up to the share's last one where the block table says they are."""
        assert share.sequence.seat is not None
        table, size, stop = self._table[share.sequence.seat], self.pool.page_size, share.start + share.count
        truth.key(stop - 1)
        held = list(chain.from_iterable([self._keys[table[index]] for index in range(-(-stop // size))]))[:stop]
        wanted = truth.keys[:stop]
        assert held == wanted, f"wrong keys from position {[a == b for a, b in zip(held, wanted, strict=True)].index(False)} on"

    def _read(self) -> None:
        for truth, token_id in self._flights.popleft():
            if truth.sequence.ended:
                assert self.scheduler.take(truth.sequence, token_id) is None
                continue
            truth.read.append(token_id)
            truth.reason = self.scheduler.take(truth.sequence, token_id)
            assert (truth.reason is not None) == truth.sequence.ended
