"""Server-sent events from bytes in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.serving import sse
from inferometer.bench.serving.sse import Event, EventParser, StreamError


def pieces(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in pairwise(places)]


def events(raw: bytes, cuts: list[int] | None = None) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces(raw, cuts or []) for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data: a\r\n\r\ndata: b\r\r", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": keep-alive\n\ndata: a\n\n", ["a"]),
        (b"id: 3\nretry: 10\nunknown: x\ndata: a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"data: a\n", []),
        (b"\n\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        ("data: é\u2028\x85\n\n".encode(), ["é\u2028\x85"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"event: error\n\ndata: a\n\n", ["a"]),
    ],
)
def test_events_as_the_standard_has_them(raw: bytes, found: list[str]) -> None:
    assert [event.data for event in events(raw)] == found


def test_the_kind_is_the_events_own() -> None:
    assert events(b"event: error\ndata: a\n\ndata: b\n\n") == [Event("a", "error"), Event("b")]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=6), st.lists(st.integers(0, 500)),
       st.sampled_from(["\n", "\r\n", "\r"]))  # fmt: skip
def test_whatever_the_pieces_are_the_events_are_those_that_were_sent(sent: list[str], cuts: list[int], end: str) -> None:
    raw = "".join(f": comment{end}data: {text}{end}{end}" for text in sent).encode()
    assert [event.data for event in events(raw, cuts)] == sent


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_no_bytes_break_it_and_no_cut_changes_what_they_mean(raw: bytes, cuts: list[int]) -> None:
    assert events(raw, cuts) == events(raw) == events(raw, list(range(300)))


@given(st.text("data:\r\n eé\ufeff", max_size=60), st.lists(st.integers(0, 100)))
def test_texts_that_look_like_events(text: str, cuts: list[int]) -> None:
    assert events(text.encode(), cuts) == events(text.encode())


@pytest.mark.parametrize("endless", [b"x", b"data: x\n"])
def test_an_event_without_an_end_does_not_fill_the_memory(endless: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_LONGEST", 1000)
    parser = EventParser()
    for _ in range(1000 // len(endless.strip())):
        parser.feed(endless)
    with pytest.raises(StreamError, match="more than 1000"):
        parser.feed(endless)


def test_it_is_idle_between_events() -> None:
    parser = EventParser()
    parser.feed(b"data: a")
    assert not parser.idle
    parser.feed(b"\n\n")
    assert parser.idle
