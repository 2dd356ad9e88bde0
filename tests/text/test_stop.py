"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.text.stop import StopMatcher

# Few letters, so that stop strings overlap each other and themselves.
LETTERS = st.sampled_from("ab\n.é")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the first position where any stop string is complete, and the longest that is complete there."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[:end], max(complete, key=len)
    return text, None


@settings(max_examples=300, deadline=None)
@given(text=st.text(LETTERS, max_size=40), stops=STOPS, cuts=st.lists(st.integers(0, 40), max_size=12))
def test_equals_the_definition_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    given_out, matched, seen = "", False, ""
    for start, end in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]):
        piece, matched = matcher.push(text[start:end])
        given_out += piece
        seen += text[start:end]
        held = matcher.text[len(given_out) :]
        if matched:
            assert piece.endswith(matcher.matched or "")
            break
        assert seen == given_out + held
        # Exactly as much is held back as may yet turn out to begin a stop string.
        longest = max((k for stop in stops for k in range(1, len(stop)) if seen.endswith(stop[:k])), default=0)
        assert len(held) == longest
    given_out += matcher.flush()
    expected, stop = reference(text, stops)
    assert (given_out, matcher.matched, matched) == (expected, stop, stop is not None)
    assert matcher.text == expected


def test_within_a_piece_and_across_pieces() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("go ST") == ("go ", False)
    assert matcher.push("ART ") == ("START ", False)
    assert matcher.push("ST") == ("", False)
    assert matcher.push("OP and more") == ("STOP", True)
    assert matcher.text == "go START STOP"
    assert matcher.push("ignored") == ("", True)
    assert matcher.flush() == ""


def test_flush_gives_out_what_was_held_back() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a##") == ("a", False)
    assert matcher.text == "a##"
    assert matcher.flush() == "##"
    assert matcher.text == "a##"
    assert matcher.matched is None


def test_the_first_to_end_wins_not_the_first_to_begin() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("abcd") == ("abc", True)
    assert matcher.matched == "bc"


def test_of_those_that_end_together_the_longest_wins() -> None:
    matcher = StopMatcher(["c", "abc", "bc"])
    matcher.push("xabc")
    assert matcher.matched == "abc"
    assert matcher.text == "xabc"


@pytest.mark.parametrize("stop", [".*", "[a]", "\n\n", "$", "\\", "é🎉", "e\u0301", "(?i)A"])
def test_matched_literally(stop: str) -> None:
    matcher = StopMatcher([stop])
    matcher.push(f"a aA x{stop}y")
    assert matcher.text == f"a aA x{stop}"


def test_no_stop_strings_hold_nothing_back() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", False)


def test_one_string_is_one_stop_string() -> None:
    matcher = StopMatcher("END")
    assert matcher.push("E E") == ("E ", False)


@pytest.mark.parametrize("stops", [[""], ["a", ""], [None]])
def test_stop_strings_that_are_refused(stops: list[str]) -> None:
    with pytest.raises(UserError, match="stop"):
        StopMatcher(stops)
