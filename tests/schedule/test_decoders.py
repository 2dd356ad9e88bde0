"""Those that decode, held to a plain account of each of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import make_request
from inferometer.schedule.decoders import Decoders
from inferometer.schedule.sequence import Sequence

PAGE = 4


@dataclass
class Account:
    """One sequence, counted by itself."""

    sequence: Sequence
    computed: int
    launched: int

    def check(self) -> None:
        sequence = self.sequence
        assert (sequence.computed, sequence.launched) == (self.computed, self.launched)
        assert (sequence.length, sequence.pending) == (sequence.prompt + self.launched, sequence.prompt + self.launched - self.computed)
        assert sequence.remaining == sequence.limit - self.launched


def enter(decoders: Decoders, number: int, prompt: int, new: int, launched: int) -> Account:
    """One with `launched` tokens generated before, which are computed again, and the next one sampled."""
    sequence = Sequence(make_request(number, prompt, new), arrival=number, most_pages=100, digests=[])
    for _ in range(launched):
        decoders_before = Decoders(PAGE)
        sequence.computed = sequence.length
        decoders_before.join(sequence)
        decoders_before.leave(sequence)
    sequence.computed = sequence.length
    decoders.join(sequence)
    return Account(sequence, prompt + launched, launched + 1)


steps = st.lists(
    st.one_of(
        st.just("advance"),
        st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 8)),  # comes: prompt, new tokens, of which so many before
        st.integers(0, 7),  # goes: its place, if there is one
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_counts_pages_and_limits_are_those_of_each_sequence_by_itself(steps: list[str | int | tuple[int, int, int]]) -> None:
    decoders, accounts = Decoders(PAGE), list[Account]()
    for number, step in enumerate(steps):
        before = decoders.cohort
        if step == "advance":
            beginning = [one.sequence for one in accounts if one.computed % PAGE == 0]
            assert (decoders.beginning, decoders.beginners) == (beginning, len(beginning))
            over = [one for one in accounts if one.launched == one.sequence.limit]
            for one in over:  # nobody goes on behind its limit
                decoders.leave(one.sequence)
                one.check()
            accounts = [one for one in accounts if one not in over]
            ending = decoders.advance()
            for one in accounts:
                one.computed += 1
                one.launched += 1
            assert ending == [one.sequence for one in accounts if one.launched == one.sequence.limit]
            assert (decoders.cohort is before) == (not over)
        elif isinstance(step, tuple):
            prompt, new, launched = step
            accounts.append(enter(decoders, number, prompt, new + launched, launched))
            assert decoders.cohort is not before
        elif isinstance(step, int) and step < len(accounts):
            gone = accounts.pop(step)
            decoders.leave(gone.sequence)
            gone.check()
            assert decoders.cohort is not before
        for one in accounts:
            one.check()
        cohort = decoders.cohort
        assert list(decoders) == list(cohort.sequences) == [one.sequence for one in accounts]
        assert len(decoders) == len(accounts)
        # The token that runs at the newest turn is the last one computed.
        assert [offset + decoders.turn for offset in cohort.offsets] == [one.computed - 1 for one in accounts]


def test_a_sweep_stays_what_it_was_when_its_sequences_have_gone_on() -> None:
    decoders = Decoders(PAGE)
    one = enter(decoders, 0, 5, 9, 0)
    decoders.advance()
    cohort, turn = decoders.cohort, decoders.turn
    decoders.advance()
    decoders.leave(one.sequence)
    assert [offset + turn for offset in cohort.offsets] == [5]


def test_nothing_is_counted_by_hand_while_it_counts_by_itself() -> None:
    decoders = Decoders(PAGE)
    sequence = enter(decoders, 0, 5, 9, 0).sequence
    with pytest.raises(AssertionError):
        sequence.computed = 3
