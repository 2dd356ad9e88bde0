"""Exchanges of memory between ranks that have not exchanged equally often before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

from inferometer.engine.parallel.exchange_store import ExchangeStore

DIST: Any = torch.distributed


def test_ranks_meet_whatever_each_has_exchanged_before() -> None:
    shared = DIST.HashStore()
    first, second = ExchangeStore(shared), ExchangeStore(shared)
    # The first process was in other groups: its numbers are higher, and others' lie between.
    for ours, theirs in ((7, 0), (8, 1), (12, 2)):
        first.set(f"Memory/{ours}/0", f"{ours}".encode())
        second.set(f"Memory/{theirs}/1", f"{theirs}".encode())
        assert first.get(f"Memory/{ours}/1") == f"{theirs}".encode()
        assert second.get(f"Memory/{theirs}/0") == f"{ours}".encode()


def test_torch_itself_reads_and_writes_through_it() -> None:
    """What its C++ side is given is this object: a part of a store calls it from there."""
    shared = DIST.HashStore()
    store = ExchangeStore(shared)
    part = DIST.PrefixStore("part", store)
    part.set("Memory/41/0", "here")
    assert part.get("Memory/41/0") == b"here"
    assert shared.get("part/Memory/0/0") == b"here"
    part.wait(["Memory/41/0"])
    assert part.check(["Memory/41/0"])
    assert part.add("count", 3) == 3
    assert not part.check(["Memory/42/0"])


def test_what_never_comes_is_waited_for_no_longer_than_asked() -> None:
    with pytest.raises(RuntimeError):
        ExchangeStore(DIST.HashStore()).wait(["Memory/3/0"], timedelta(milliseconds=1))
