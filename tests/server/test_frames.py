"""Messages survive the way, however their bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.server.frames import FrameReader, frame
from inferometer.server.messages import Abort, Add, Begin, Broken, Embedded, Extra, Load, Ping, Step
from inferometer.server.settings import ServerSettings

MESSAGES = [
    Begin(ServerSettings(model_id="m", cors_allow_origin=("a", "b"))),
    Add((Request(1, (1, 2), SamplingParams(stop=("x",), logit_bias={3: 1.5}), 7, (2,)),)),
    Abort((1, 2)),
    Ping(),
    Step(
        ((1, 16),),
        (1, 2),
        (5, 6),
        (-0.5, -1.5),
        {1: Extra(((6, -1.5),), (None, -2.0), "length")},
        Load(0, 2, 3, 0, 16, 1.5, 4, 1, 17, 2, 16),
    ),
    Broken((1,), "why"),
    Embedded(3, 2, b"\x00" * 8),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=12), st.lists(st.integers(1, 200), min_size=1))
def test_any_cut_gives_the_same_messages(messages: list[object], cuts: list[int]) -> None:
    data = b"".join(frame(message) for message in messages)  # type: ignore[arg-type]
    reader, found, start, turn = FrameReader(), [], 0, 0
    while start < len(data):
        size = cuts[turn % len(cuts)]
        found += reader.feed(data[start : start + size])
        start, turn = start + size, turn + 1
    assert found == messages


def test_a_length_that_no_message_has_is_told() -> None:
    with pytest.raises(ValueError, match="no server process of this version"):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\n\xff"[:3] + b"\xff\xff\xff\xff"))
