"""Waiting for memory that a machine may be given as what it has is taken."""

from __future__ import annotations

import itertools

import pytest

from inferometer.hardware import host_memory
from inferometer.hardware.host_memory import await_free_host_bytes, free_host_bytes


def test_what_is_there_is_not_waited_for() -> None:
    assert 0 < await_free_host_bytes(1, patience_s=1e9) <= 2 * free_host_bytes()


def test_memory_that_grows_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "POLL_S", 0.0)
    monkeypatch.setattr(host_memory, "free_host_bytes", itertools.count(5).__next__)
    assert await_free_host_bytes(1000, patience_s=1e9) == 1000


def test_memory_that_does_not_grow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.count()
    monkeypatch.setattr(host_memory, "POLL_S", 0.0)
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 7)
    monkeypatch.setattr("time.monotonic", lambda: float(next(moments)))
    assert await_free_host_bytes(8, patience_s=3) == 7
    assert 3 <= next(moments) <= 6
