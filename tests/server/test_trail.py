"""One request, one outcome, whoever tells it and however often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.server.failures import Kind
from inferometer.server.observer import Observer
from inferometer.server.trail import CURRENT, Trail
from inferometer.server.trail_keeper import TrailKeeper


class Notes(Observer):
    """What was heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def received(self, path: str) -> None:
        self.heard.append("received")

    def refused(self, kind: Kind) -> None:
        self.heard.append(kind)

    def dropped(self) -> None:
        self.heard.append("dropped")

    def succeeded(self, generations: object) -> None:
        self.heard.append("success")


@pytest.fixture(autouse=True)
def no_trail_left() -> Iterator[None]:
    yield
    CURRENT.set(None)


def lay(**fields: object) -> tuple[Trail, Notes, TrailKeeper]:
    trail = Trail("POST", **{"route": "/generate", **fields})  # type: ignore[arg-type]
    CURRENT.set(trail)
    notes = Notes()
    return trail, notes, TrailKeeper(notes)


@given(st.lists(st.sampled_from(["received", "overloaded", "validation", "dropped", "success", "answered"]), min_size=1, max_size=8))
def test_exactly_one_outcome_is_heard_of_whatever_is_told(told: list[str]) -> None:
    trail, notes, keeper = lay()
    trail.status = 422
    keeper.received("/generate")
    for word in told:
        match word:
            case "received":
                keeper.received("/generate")
            case "dropped":
                keeper.dropped()
            case "success":
                keeper.succeeded([])
            case "answered":
                keeper.answered(trail)
            case _:
                keeper.refused(word)  # type: ignore[arg-type]
    outcomes = [word for word in told if word not in ("received", "answered")]
    assert notes.heard == ["received", *outcomes[:1]]
    assert trail.outcome == (outcomes[0] if outcomes else None)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, "validation"),
        (408, "timeout"),
        (413, "payload_too_large"),
        (415, "unsupported_media_type"),
        (422, "validation"),
        (499, "dropped"),
    ],
)
def test_what_got_no_further_than_its_body_is_counted_too(status: int, outcome: str) -> None:
    trail, notes, keeper = lay(status=status)
    keeper.answered(trail)
    assert notes.heard == ["received", outcome]


@pytest.mark.parametrize(
    "fields", [{"status": 200}, {"status": 401}, {"status": 422, "route": "/tokenize"}, {"status": 404, "route": "other"}]
)
def test_what_asks_for_no_work_is_not(fields: dict[str, object]) -> None:
    trail, notes, keeper = lay(**fields)
    keeper.answered(trail)
    assert notes.heard == []
