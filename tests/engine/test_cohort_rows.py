"""What a cohort adds up from sweep to sweep is what its shares say, whatever comes and goes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import make_request
from inferometer.engine.cohort_rows import CohortRows
from inferometer.engine.facts import Facts
from inferometer.engine.sampling_state import SamplingState
from inferometer.engine.staging import Shape, Staged, pack, pack_decode
from inferometer.schedule.admission import Admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Diagonal, Zigzag
from inferometer.schedule.pages import PagePool
from inferometer.schedule.scheduler import Scheduler
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import NOBODY

PAGE = 4
IDLE = 12
ORDERS: dict[str, Admission] = {"continuous": Continuous(), "greedy": Continuous(horizon=0), "zigzag": Zigzag(3), "diagonal": Diagonal(2)}

asked = st.tuples(st.integers(1, 20), st.integers(1, 14), st.integers(0, 15), st.sampled_from((0, 0, 3)), st.none() | st.integers(0, 25))
"""prompt, new tokens, the step before which it comes, about how many tokens until an end token, the step before which it is dropped."""


def same(got: Facts, want: Facts) -> None:
    for field in fields(Facts):
        ours, theirs = getattr(got, field.name), getattr(want, field.name)
        assert ours.dtype == theirs.dtype, field.name
        assert np.array_equal(ours, theirs), field.name


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=30, deadline=None)
@given(
    stream=st.lists(asked, min_size=1, max_size=10), pages=st.sampled_from((0, 4, 60)), lookahead=st.integers(0, 1), caching=st.booleans()
)
def test_every_sweep_has_the_facts_of_its_shares(
    order: str, stream: list[tuple[int, int, int, int, int | None]], pages: int, lookahead: int, caching: bool
) -> None:
    pages += max(-(-(prompt + new) // PAGE) for prompt, new, *_ in stream)
    scheduler = Scheduler(PagePool(pages, PAGE), ORDERS[order], max_batch=IDLE, sweep_tokens=24, prefix_caching=caching)
    state = SamplingState(8, torch.device("cpu"))
    rows = CohortRows(NOBODY, PAGE, state.place)
    flights: list[tuple[Sequence, ...]] = []
    step = 0
    while scheduler.has_work or step <= max(arrives for _, _, arrives, _, _ in stream):
        for number, (prompt, new, arrives, end_every, dropped) in enumerate(stream):
            if arrives == step:
                scheduler.add(make_request(number, prompt, new, end_every=end_every))
            if dropped == step:
                scheduler.abort(number)
        sweep = scheduler.next()
        if sweep is not None:
            if sweep.cohort is not rows.cohort:
                rows = CohortRows(sweep.cohort, PAGE, state.place)
            got = rows.facts(sweep.turn)
            decoding = sorted((share for share in sweep.shares if share.decodes), key=lambda share: state.place(share.sequence))
            assert [share.sequence for share in decoding] == list(rows.sequences)
            want = Facts.of(decoding, PAGE)
            same(got, want)
            pieces = [share for share in sweep.shares if not share.decodes]
            others = Facts.of(pieces, PAGE)
            packed, shape = pack(got.followed_by(others), PAGE)
            assert torch.equal(packed, pack(Facts.of([*decoding, *pieces], PAGE), PAGE)[0])
            if decoding and not pieces:
                size = len(decoding) + 2
                short = Staged.of(pack_decode(got, size, PAGE, IDLE), Shape(size, size, size, size))
                plain = Staged.of(packed, shape)
                for name in ("token_ids", "positions", "rotary_lengths", "places", "last", "sampled_seats", "entry_columns", "contexts"):
                    assert torch.equal(getattr(short, name)[: len(decoding)], getattr(plain, name)), name
            entering = [share.sequence for share in pieces if share.samples]
            if rows.sequences or entering:
                batch = state.align(rows.sequences, entering)
                batch.update(torch.zeros(len(batch), dtype=torch.int64))
                assert len(batch) == len(rows.sequences) + len(entering)
                assert batch.generated == tuple(one.launched for one in (*rows.sequences, *entering))
            flights.append((*rows.sequences, *entering))
        if flights and (sweep is None or len(flights) > lookahead):
            for sequence in flights.pop(0):
                scheduler.take(sequence, (7 * step + sequence.arrival) % 5)
        scheduler.check_pages()
        step += 1
        assert step < 2000, "somebody starves"
