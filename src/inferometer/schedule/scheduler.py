"""The scheduler: takes requests in, says what runs in the next sweep, and learns the tokens that came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many

from inferometer.schedule.admission import Admission
from inferometer.schedule.batch import Batch
from inferometer.schedule.completion import FinishReason
from inferometer.schedule.finish import finish_reason
from inferometer.schedule.pages import PagePool
from inferometer.schedule.prefix import root_digest
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import NamedError
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Sweep


class RequestTooLargeError(NamedError):
    """A request that could never run; the message says how many pages it needs and how many there are."""


def unsalted(request: Request) -> bytes:
    """Nothing but its tokens decides a prompt's keys."""
    return b""


class Scheduler:
    """Decides over the sweeps of one engine. Sweeps may be planned ahead of the reading of their tokens, as far as the engine likes.

    Every sweep that `next` returns must be launched, in order, and every token it samples be brought to `take`, in order, except those of
    sequences that have ended. If a sweep fails, nothing written since is what the prefix cache takes it for: `clear`.

    pool: the scheduler's own. max_batch: most sequences that run together. sweep_tokens: most tokens of a sweep; it bounds the batch as
    well. prefix_caching: whether full pages are found again by their tokens. salt: what besides the tokens decides a prompt's keys.
    Raises ValueError for limits below 1.
    """

    def __init__(
        self,
        pool: PagePool,
        admission: Admission,
        *,
        max_batch: int,
        sweep_tokens: int,
        prefix_caching: bool = True,
        salt: Callable[[Request], bytes] = unsalted,
    ) -> None:
        if max_batch < 1 or sweep_tokens < 1:
            raise ValueError(f"max_batch and sweep_tokens must be at least 1, not {max_batch} and {sweep_tokens}")
        self.pool = pool
        self.admission = admission
        self._batch = Batch(pool, seats=max_batch, sweep_tokens=sweep_tokens, prefix_caching=prefix_caching)
        self._salt = salt
        self._arrivals = 0
        self._alive: dict[int, Sequence] = {}  # by request id: all whose last token is not read yet

    @property
    def has_work(self) -> bool:
        """Whether any request waits, runs, or has tokens that are not read yet."""
        return bool(self._alive)

    @property
    def waiting(self) -> int:
        """Requests without a seat that still have tokens to launch."""
        return len(self._batch.waiting)

    @property
    def running(self) -> int:
        """Sequences that have a seat."""
        return self._batch.running

    @property
    def preemptions(self) -> int:
        """How often a running sequence had to give its pages back."""
        return self._batch.preemptions

    @property
    def hit_pages(self) -> int:
        """Pages that were found in the prefix cache instead of computed."""
        return self._batch.hit_pages

    @property
    def hit_tokens(self) -> int:
        """Tokens whose keys and values were found in the prefix cache instead of computed."""
        return self._batch.hit_pages * self.pool.page_size

    def check(self, request: Request) -> None:
        """Raises RequestTooLargeError for a request that could never run, however long it waited."""
        needed = self._most_pages(request)
        if needed > self.pool.pages:
            prompt, new = len(request.prompt_token_ids), request.params.max_new_tokens
            raise RequestTooLargeError.of(
                f"a prompt of {prompt} tokens and {new} new ones need {needed} pages of KV cache ({self.pool.page_size} tokens each), "
                f"{self.pool.pages} are available; use a shorter prompt or a smaller ",
                "max_new_tokens",
                ", or raise --gpu-memory",
            )

    def add(self, request: Request) -> Sequence:
        """Queues a request. Raises RequestTooLargeError for one that could never run, ValueError for an id that is still alive."""
        self.check(request)
        if request.id in self._alive:
            raise ValueError(f"request {request.id} is already waiting or running")
        digests = [root_digest(self._salt(request))] if self._batch.prefix_caching else []
        sequence = Sequence(request, arrival=self._arrivals, most_pages=self._most_pages(request), digests=digests)
        self._arrivals += 1
        self._alive[request.id] = sequence
        self._batch.waiting.append(sequence)
        return sequence

    def abort(self, request_id: int) -> None:
        """Ends a request at once, wherever it is; its tokens under way are not wanted any longer. Unknown ids are ignored."""
        sequence = self._alive.get(request_id)
        if sequence is not None:
            self._end(sequence)

    def clear(self) -> None:
        """Ends all requests and forgets the prefix cache, which a sweep that failed may have filled with anything."""
        for sequence in list(self._alive.values()):
            self._end(sequence)
        self._batch.close()  # what a plan that was interrupted had put together
        self.pool.forget()

    def next(self) -> Sweep | None:
        """What runs in the next sweep; None if nothing can: there is no work, or what there is waits for tokens to be read."""
        self._batch.retire()
        self.admission.plan(self._batch)
        return self._batch.close()

    def take(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Brings the next token of a sequence, read from the device; says why it ends, if this is its last.

        Tokens of a sequence that has ended are ignored. Raises RuntimeError for a token that no sweep has sampled.
        """
        return None if sequence.ended else self.take_all((sequence,), (token_id,))[0]

    def take_all(self, sequences: Many[Sequence], token_ids: Many[int]) -> list[FinishReason | None]:
        """As `take`, a token for each of several sequences, none of which has ended."""
        reasons: list[FinishReason | None] = []
        page_size = self.pool.page_size if self._batch.prefix_caching else None
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            tokens = sequence.tokens
            if len(tokens) >= sequence.length:
                number = sequence.generated + 1
                raise RuntimeError(f"request {sequence.request.id} gets its token number {number}, but {sequence.launched} were sampled")
            tokens.append(token_id)
            reason = None
            if token_id in sequence.ends or len(tokens) >= sequence.longest:
                reason = finish_reason(sequence.request, token_id, sequence.generated)
                self._end(sequence)
            elif page_size is not None and len(tokens) >= (sequence.published + 1) * page_size:
                self._batch.publish(sequence)
            reasons.append(reason)
        return reasons

    def check_pages(self) -> None:
        """Raises RuntimeError, saying what is wrong, unless the pages in use are exactly those that running sequences hold."""
        self.pool.check()
        held: Counter[int] = Counter()
        for sequence in self._batch.sequences():
            held.update(sequence.pages)
            if len(sequence.pages) != self.pool.pages_of(sequence.computed):
                raise RuntimeError(f"{sequence!r} holds {len(sequence.pages)} pages")
        if held != self.pool.users():
            wrong = sorted(page for page in {**held, **self.pool.users()} if held[page] != self.pool.users().get(page, 0))
            raise RuntimeError(f"pages {wrong} have more or fewer users than sequences that hold them")
        for sequence in self._alive.values():
            if sequence.seat is None and sequence.pages:
                raise RuntimeError(f"{sequence!r} holds pages without a seat")

    def _most_pages(self, request: Request) -> int:
        return self.pool.pages_of(request.tokens - 1)  # the last token is never run

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        del self._alive[sequence.request.id]
        if sequence.seat is not None:
            self._batch.leave(sequence)
        elif sequence.remaining:
            self._batch.waiting.remove(sequence)
