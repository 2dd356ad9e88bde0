"""Random streams of requests through a scheduler and an executor that checks every read: nothing leaks, starves, or goes astray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import FakeExecutor, make_request
from inferometer.schedule.admission import Admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Diagonal, Row, Zigzag
from inferometer.schedule.request import Request

BASES = tuple(tuple(base * 100_000 + i + 1 for i in range(200)) for base in range(3))


@dataclass(frozen=True)
class Arrival:
    request: Request
    sweep: int
    abort_after: int | None


@dataclass(frozen=True)
class Stream:
    arrivals: tuple[Arrival, ...]
    page_size: int
    sweep_tokens: int
    max_batch: int
    pages: int
    lookahead: int
    prefix_caching: bool


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    page_size = draw(st.sampled_from([1, 3, 4, 8]))
    sweep_tokens = draw(st.sampled_from([1, 2, 5, 8, 16, 33, 64, 500]))
    edges = sorted({max(1, n) for edge in (page_size, 2 * page_size, sweep_tokens, 2 * sweep_tokens) for n in (edge - 1, edge, edge + 1)})
    lengths = st.one_of(st.sampled_from([n for n in edges if n <= 140]), st.integers(1, 60))
    arrivals = []
    for id_ in range(draw(st.integers(1, 14))):
        length, common = draw(lengths), draw(st.integers(0, 60))
        base = draw(st.sampled_from(BASES))
        own = tuple(10_000_000 + 1000 * id_ + i for i in range(length))
        prompt = (base[:common] + own)[:length]
        request = make_request(
            id_, prompt, draw(st.integers(1, 24)), end_every=draw(st.sampled_from([0, 0, 3, 8])), prompt_logprobs=draw(st.booleans())
        )
        arrivals.append(Arrival(request, draw(st.integers(0, 12)), draw(st.one_of(st.none(), st.none(), st.integers(0, 20)))))
    largest = max(-(-(arrival.request.tokens - 1) // page_size) for arrival in arrivals)
    return Stream(
        tuple(arrivals),
        page_size,
        sweep_tokens,
        draw(st.integers(1, 8)),
        largest + draw(st.sampled_from([0, 0, 1, 3, 10, 40])),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
    )


def run(stream: Stream, admission: Admission) -> FakeExecutor:
    executor = FakeExecutor(
        admission,
        pages=stream.pages,
        page_size=stream.page_size,
        max_batch=stream.max_batch,
        sweep_tokens=stream.sweep_tokens,
        prefix_caching=stream.prefix_caching,
        lookahead=stream.lookahead,
    )
    pending = sorted(stream.arrivals, key=lambda arrival: arrival.sweep)
    # Whoever is the oldest runs at least one token a sweep, and nobody who came later holds it up for longer than it runs itself.
    work = sum(arrival.request.tokens for arrival in stream.arrivals)
    step = 0
    while pending or executor.scheduler.has_work:
        while pending and pending[0].sweep <= step:
            executor.add(pending.pop(0).request)
        for arrival in stream.arrivals:
            if arrival.abort_after is not None and step == arrival.sweep + arrival.abort_after:
                executor.abort(arrival.request.id)
        executor.step()
        step += 1
        assert step <= 3 * work + 50, "someone starves"
    executor.run()
    executor.check_finished()
    return executor


ADMISSIONS: dict[str, Callable[[], Admission]] = {
    "continuous": Continuous,
    "continuous-tight": lambda: Continuous(horizon=0),
    "continuous-beside": lambda: Continuous(horizon=0, prompt_tokens=3),
    "zigzag": lambda: Zigzag(3),
    "zigzag-2x2": lambda: Zigzag(2, 2),
    "diagonal": lambda: Diagonal(2),
    "diagonal-3x2": lambda: Diagonal(3, 2),
    "row": lambda: Row(3),
}


@pytest.mark.parametrize("name", ADMISSIONS)
@given(stream=streams())
@settings(max_examples=25, deadline=None)
def test_every_request_generates_what_it_does_alone(name: str, stream: Stream) -> None:
    executor = run(stream, ADMISSIONS[name]())
    if "continuous" not in name:
        assert executor.scheduler.preemptions == 0


@given(stream=streams())
@settings(max_examples=60, deadline=None)
def test_streams_under_pressure_more_often(stream: Stream) -> None:
    run(stream, Continuous(horizon=0))
