"""Room for pages is measured again when others have taken or given back memory."""

from __future__ import annotations

import pytest

from inferometer.bench.backends import native_room
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.records.failures import CacheTooSmallError
from inferometer.engine.llm import LLM


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
