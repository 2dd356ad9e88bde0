"""Room for pages: how much a batch needs, and when it is measured again."""

from __future__ import annotations

import pytest
from native_backends import LENGTH, NEW, ORDERS, PARAMS, PROMPTS, ROWS, Cramped, expected, pages

from inferometer.bench.backends import native_room
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.records.failures import CacheTooSmallError
from inferometer.engine.llm import LLM
from inferometer.schedule.admission import Admission


def test_room_follows_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("tiny-opt", dtype="float32", device="cpu", weights="dummy")
    free = 1 << 33
    asked: list[int] = []

    def room(*, seats: int, sweep_tokens: int) -> int:
        asked.append(seats)
        return free >> 30

    monkeypatch.setattr(native_room, "free_host_bytes", lambda: free)
    monkeypatch.setattr(llm, "room", room)
    backend = NativeBackend(llm)
    backend.prepare(8, 16)
    backend.prepare(8, 16)
    assert len(asked) == 1, "measured once while nothing changes"
    free = 1 << 31
    with pytest.raises(CacheTooSmallError, match=r"8 x 15 tokens together need 8 pages .* 2 "):
        backend.prepare(8, 16)
    free = 1 << 33
    backend.prepare(8, 16)
    assert len(asked) == 3
    backend.close()


def cramped(llm: LLM, room: int, order: Admission | None = None) -> NativeBackend:
    return NativeBackend(Cramped(llm, room), order)  # type: ignore[arg-type]


def test_a_batch_that_has_no_room_together_says_how_many_pages_it_needs_and_there_are(llm: LLM) -> None:
    needed = ROWS * pages(LENGTH + NEW - 1)
    cramped(llm, needed).prepare(ROWS, LENGTH + NEW)
    tight = cramped(llm, needed - 1)
    with pytest.raises(CacheTooSmallError, match=rf"6 x 33 tokens together need {needed} pages of .*, {needed - 1} \(.* are available"):
        tight.prepare(ROWS, LENGTH + NEW)
    assert tight.page_use() is None
    assert tight.resident_bytes == sum(parameter.nbytes for parameter in llm.model.parameters())


@pytest.mark.parametrize(("name", "least"), [("continuous", 1), ("zigzag", 2), ("diagonal", 2), ("row", 4)])
def test_an_admission_makes_do_with_less_but_not_with_less_than_a_group(llm: LLM, name: str, least: int) -> None:
    each = pages(LENGTH + NEW - 1)
    order = ORDERS[name]
    with pytest.raises(CacheTooSmallError, match=f"{least} x 33 tokens together need {least * each} pages"):
        cramped(llm, least * each - 1, order).prepare(ROWS, LENGTH + NEW)
    native = cramped(llm, least * each, order)
    native.prepare(ROWS, LENGTH + NEW)
    assert not native.phased  # the batch does not run as one block
    native.generate(PROMPTS, PARAMS)
    assert native.finish() == expected(llm)
    used = native.page_use()
    assert used is not None
    assert used.peak == used.pages == least * each


def test_room_for_many_rows_is_measured_only_where_few_would_fit(llm: LLM) -> None:
    asked: list[tuple[int, int]] = []

    class Watched(Cramped):
        def room(self, *, seats: int, sweep_tokens: int) -> int:
            asked.append((seats, sweep_tokens))
            return self._room

    native = NativeBackend(Watched(llm, 20_000))  # type: ignore[arg-type]
    native.prepare(2, 10)
    native.prepare(4, 10)
    assert asked == [(256, 8192)]
    native.prepare(9000, 10)
    assert asked == [(256, 8192), (9000, 9000)]
    with pytest.raises(CacheTooSmallError):
        native.prepare(10**9, 10)
    assert len(asked) == 2
