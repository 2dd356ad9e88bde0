"""Which launches the native backend has measured before a case, and what it says of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from native_backends import ORDERS, ROWS, Cramped, backend

from inferometer.bench.backends import native_tuning
from inferometer.bench.backends.native import NativeBackend
from inferometer.engine.llm import LLM


class Choosy(Cramped):
    """An LLM whose launches are chosen by measuring, which takes a while."""

    def __init__(self, llm: LLM, clock: list[float]) -> None:
        super().__init__(llm, 20_000)
        self.asked: list[tuple[tuple[int, ...], float]] = []
        self._clock = clock

    def tune(self, rows: Sequence[int], *, seconds: float) -> int:
        self.asked.append((tuple(rows), seconds))
        self._clock[0] += 20 if rows else 0
        return 5 if rows else 0


@pytest.mark.parametrize(
    ("order", "rows", "buckets"),
    [
        ("none", 3, (4,)),
        ("none", 32, (32,)),
        ("none", 33, ()),
        ("zigzag, two groups", 6, (4,)),
        ("row", 6, (4,)),
        ("diagonal", 7, (2, 4, 8)),
        ("continuous", 6, (1, 2, 4, 8)),
    ],
)
def test_launches_are_measured_for_the_rows_that_will_run_and_once(
    llm: LLM, order: str, rows: int, buckets: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the pages are taken; a minute is enough for a model, and what takes long is said."""
    clock = [0.0]
    monkeypatch.setattr(native_tuning.time, "monotonic", lambda: clock[0])
    choosy = Choosy(llm, clock)
    native = NativeBackend(choosy, ORDERS[order])  # type: ignore[arg-type]
    assert choosy.asked == [((), 0)]  # what is on file
    made = native.preparations
    for _ in range(2):
        native.prepare(rows, 10)
        assert choosy.asked[1:] == ([(buckets, 60.0)] if buckets else [])
    said = capsys.readouterr().err
    assert said.count("\n") == bool(buckets)
    if buckets:
        assert f"5 launches for {' and '.join(map(str, buckets))} rows of" in said
        assert "in 20 s" in said
    assert native.preparations == made + len(buckets)


def test_how_long_launches_are_measured_is_asked(llm: LLM) -> None:
    choosy = Choosy(llm, [0.0])
    native = NativeBackend(choosy, tuning_seconds=2.5)  # type: ignore[arg-type]
    native.prepare(3, 10)
    assert choosy.asked == [((), 0), ((4,), 2.5)]


def test_a_forward_of_few_tokens_has_its_launches_measured_too(llm: LLM) -> None:
    choosy = Choosy(llm, [0.0])
    native = NativeBackend(choosy)  # type: ignore[arg-type]
    native.forward([[1, 2, 3], [4, 5, 6]], loss=False)
    native.forward([[1] * 33], loss=False)
    assert [rows for rows, _ in choosy.asked] == [(), (8,)]


def test_launches_say_how_many_were_measured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    native = backend(llm)
    assert native.launches is None  # on a CPU there are none
    monkeypatch.setattr(native_tuning, "launches_known", lambda model, rows: (rows, 9))
    assert native.launches == {"measured": ROWS, "maps": 9}
