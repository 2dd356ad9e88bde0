"""One run of a case, between readings of the clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inferometer.bench.backends.backend import Backend, Prompts
from inferometer.bench.records.case import Case
from inferometer.bench.records.failures import during


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of what had a time of its own: prefill and decode, or the whole of both, or a forward.

    begun: of the whole, until every row had its first token, and the tokens that there were by then; None where nobody says.
    """

    prefill: float | None = None
    decode: float | None = None
    whole: float | None = None
    forward: float | None = None
    begun: tuple[float, int] | None = None

    @property
    def all(self) -> float:
        """Of the run."""
        return sum(each or 0.0 for each in (self.prefill, self.decode, self.whole, self.forward))


def timed_run(case: Case, backend: Backend, prompts: Prompts, clock: Callable[[], float]) -> Times:
    """Runs the case once. clock: in seconds.

    Raises RuntimeError where other tokens come back than were asked for, and whatever the backend raises.
    """
    with full_collections_later():
        if case.forward_only:
            return _forward(case, backend, prompts, clock)
        run = _steps if case.decode_only else _phases if backend.phased else _whole
        times = run(case, backend, prompts, clock)
    tokens = backend.finish()
    if [len(row) for row in tokens] != [case.steps + 1] * case.batch_size:
        lengths = sorted({len(row) for row in tokens})
        raise RuntimeError(f"{len(tokens)} rows of {lengths} tokens came back, not {case.batch_size} of {case.steps + 1}")
    return times


@contextmanager
def full_collections_later() -> Iterator[None]:
    """While it lasts Python looks through young objects alone for cycles that nobody refers to, as often as ever.

    A look through all that was ever imported comes at any moment of any run, and takes 50 to 350 ms: prompts of 42 ms took 77. A server
    has put that out of sight (`server/warm_up.py`).
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 1 << 30)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


def _forward(case: Case, backend: Backend, prompts: Prompts, clock: Callable[[], float]) -> Times:
    backend.synchronise()
    begin = clock()
    with during("in the forward"):
        backend.forward(prompts, loss=case.loss)
        backend.synchronise()
    end = clock()
    return Times(forward=end - begin)


def _phases(case: Case, backend: Backend, prompts: Prompts, clock: Callable[[], float]) -> Times:
    params = case.sampling_params()
    backend.synchronise()
    begin = clock()
    with during("in the prefill"):
        backend.prefill(prompts, params)
        backend.synchronise()
    prefilled = clock()
    with during("in decode"):
        for _ in range(case.steps):
            backend.decode()
        backend.synchronise()
    end = clock()
    return Times(prefill=prefilled - begin, decode=end - prefilled)


def _steps(case: Case, backend: Backend, prompts: Prompts, clock: Callable[[], float]) -> Times:
    with during("while the context was made"):
        backend.fill(prompts, case.sampling_params())
        backend.synchronise()
    begin = clock()
    with during("in decode"):
        for _ in range(case.steps):
            backend.decode()
        backend.synchronise()
    end = clock()
    return Times(decode=end - begin)


def _whole(case: Case, backend: Backend, prompts: Prompts, clock: Callable[[], float]) -> Times:
    params = case.sampling_params()
    backend.synchronise()
    begin = clock()
    with during("while it ran"):
        backend.generate(prompts, params)
        backend.synchronise()
    end = clock()
    return Times(whole=end - begin, begun=getattr(backend, "begun", None))
