"""One timed run: what may happen meanwhile, and what may not."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from inferometer.bench.measurement.timed_run import full_collections_later


def collected(objects: int) -> list[int]:
    """The generations that are collected while so many objects are made that stay."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(objects)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == objects
    return seen


def test_old_objects_are_not_looked_through_in_a_run() -> None:
    assert 2 in collected(200_000)
    with full_collections_later():
        assert set(collected(200_000)) == {0, 1}
    assert 2 in collected(200_000)


def test_a_failed_run_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="failed"), full_collections_later():
        raise ValueError("failed")
    assert gc.get_threshold() == before
