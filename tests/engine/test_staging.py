"""A sweep packed for the device says the same in every form, and padding touches nothing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.facts import Facts
from inferometer.engine.staging import Shape, Staged, pack, pack_decode, pack_mixed, table_entries
from inferometer.engine.sweep_graphs import PROMPT_COUNTS, PROMPT_TOKENS, PROMPTS, Bucket, rows_bucket
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.pages import PagePool
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.scheduler import Scheduler
from inferometer.schedule.sweep import Share

PAGE = 4
IDLE = 30


def shares(decoding: list[int], prompts: list[int], chunk: int) -> tuple[list[Share], list[Share]]:
    """What a scheduler makes of requests of these prompt lengths: those that decode, and those that come to it."""
    scheduler = Scheduler(PagePool(400, PAGE), Continuous(), max_batch=IDLE, sweep_tokens=chunk + 40, prefix_caching=False)
    params = SamplingParams(max_new_tokens=50, ignore_eos=True)
    number = 0
    for length in decoding:
        scheduler.add(Request(number, tuple(range(length)), params, 0))
        number += 1
    for _ in range(20):  # until all of them decode
        scheduler.next()
    for length in prompts:
        scheduler.add(Request(number, tuple(range(100, 100 + length)), params, 0))
        number += 1
    sweep = scheduler.next()
    found = () if sweep is None else sweep.shares
    return [s for s in found if s.decodes], [s for s in found if not s.decodes]


lengths = st.lists(st.integers(1, 30), max_size=6)


@settings(max_examples=60, deadline=None)
@given(decoding=lengths, prompts=lengths, chunk=st.sampled_from((20, 60, 200)))
def test_padding_adds_idle_rows_and_tokens_alone(decoding: list[int], prompts: list[int], chunk: int) -> None:
    continuing, entering = shares(decoding, prompts, chunk)
    if not entering:
        return
    facts, others = Facts.of(continuing, PAGE), Facts.of(entering, PAGE)
    packed, shape = pack(facts.followed_by(others), PAGE)
    plain = Staged.of(packed, shape)
    rows, tokens = len(continuing) + 3, sum(share.count for share in entering) + 5
    bucket = Shape(rows + tokens, rows + PROMPTS, rows + PROMPTS, 0)
    padded = Staged.of(pack_mixed(facts, others, rows, tokens, PROMPTS, PAGE, IDLE), bucket)
    d, n, p = len(continuing), shape.tokens - len(continuing), len(entering)
    real = torch.cat((torch.arange(d), rows + torch.arange(n)))
    idle = torch.ones(rows + tokens, dtype=torch.bool).index_fill_(0, real, False)
    for name in ("positions", "rotary_lengths", "places"):
        assert torch.equal(getattr(padded, name)[real], getattr(plain, name))
    assert torch.equal(padded.token_ids[rows : rows + n], plain.token_ids[d:])
    assert padded.token_ids[:d].tolist() == [-1 - share.sequence.seat for share in continuing if share.sequence.seat is not None]
    assert (padded.places[idle] == -1).all()
    assert (plain.places >= 0).all()
    sequences = torch.cat((torch.arange(d), rows + torch.arange(p)))
    assert torch.equal(padded.seats[sequences], plain.seats)
    assert torch.equal(padded.contexts[sequences], plain.contexts)
    outside = torch.ones(rows + PROMPTS, dtype=torch.bool).index_fill_(0, sequences, False)
    assert (padded.contexts[outside] == 0).all()
    assert (padded.seats[outside] == IDLE).all()
    counts = padded.starts.diff()
    assert counts[sequences].tolist() == [share.count for share in (*continuing, *entering)]
    assert (counts[rows + p :] == 0).all()
    sampled = shape.sampled
    assert torch.equal(padded.sampled_seats[:sampled], plain.sampled_seats)
    assert (padded.sampled_seats[sampled:] == IDLE).all()
    assert torch.equal(padded.positions[padded.last[:sampled]], plain.positions[plain.last])


@settings(max_examples=40, deadline=None)
@given(decoding=st.lists(st.integers(1, 30), min_size=1, max_size=6), padding=st.integers(0, 4))
def test_a_decode_sweep_is_packed_the_same_by_its_short_way(decoding: list[int], padding: int) -> None:
    continuing, _ = shares(decoding, [], 200)
    assert len(continuing) == len(decoding)
    facts = Facts.of(continuing, PAGE)
    packed, shape = pack(facts, PAGE)
    plain, rows = Staged.of(packed, shape), len(continuing)
    size = rows + padding
    short = Staged.of(pack_decode(facts, size, PAGE, IDLE), Shape(size, size, size, size))
    for name in ("positions", "rotary_lengths", "places", "seats", "contexts", "last", "sampled_seats", "entry_seats", "entry_pages"):
        assert torch.equal(getattr(short, name)[:rows], getattr(plain, name)), name
    assert torch.equal(short.entry_columns[:rows], plain.entry_columns)
    assert (short.contexts[rows:] == 0).all()
    assert (short.places[rows:] == -1).all()
    assert torch.equal(short.starts, torch.arange(size + 1, dtype=torch.int32))


def test_who_enters_brings_all_pages_and_who_goes_on_only_new_ones() -> None:
    scheduler = Scheduler(PagePool(400, PAGE), Continuous(), max_batch=4, sweep_tokens=8)
    scheduler.add(Request(0, tuple(range(19)), SamplingParams(max_new_tokens=9, ignore_eos=True), 0))
    seen: list[tuple[int, int]] = []
    for _ in range(4):
        sweep = scheduler.next()
        assert sweep is not None
        seats, columns, pages = table_entries(Facts.of(sweep.shares, PAGE)).tolist()
        assert set(seats) == {0}
        assert [sweep.shares[0].sequence.pages[column] for column in columns] == pages
        seen += [(column, page) for column, page in zip(columns, pages, strict=True)]
    assert sorted({column for column, _ in seen}) == [0, 1, 2, 3, 4]


@given(st.integers(1, 2000))
def test_buckets_hold_what_they_are_for(rows: int) -> None:
    assert rows <= rows_bucket(rows) <= rows + max(2, rows // 4)
    kinds = [(0, 0), *((tokens, prompts) for tokens in PROMPT_TOKENS for prompts in PROMPT_COUNTS if tokens >= 2 * prompts)]
    for tokens, prompts in kinds:
        bucket = Bucket(rows_bucket(rows), tokens, prompts, 512)
        assert sum(bucket.query_lengths) == bucket.shape.tokens
        assert len(bucket.query_lengths) == bucket.shape.sequences
        assert [length > 1 for length in bucket.query_lengths] == [False] * bucket.rows + [True] * prompts
