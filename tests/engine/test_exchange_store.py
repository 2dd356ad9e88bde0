"""Exchanges of memory between ranks that have not exchanged equally often before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

from inferometer.engine.parallel.exchange_store import ExchangeStore, NamedRanks

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
    part.set("Memory/43/1", bytes(range(256)))
    assert part.get("Memory/43/1") == bytes(range(256))
    assert part.add("count", 3) == 3
    assert not part.check(["Memory/42/0"])


def test_what_never_comes_is_waited_for_no_longer_than_asked() -> None:
    with pytest.raises(RuntimeError):
        ExchangeStore(DIST.HashStore()).wait(["Memory/3/0"], timedelta(milliseconds=1))


def test_torch_finds_ranks_by_their_name_and_what_they_exchange_through() -> None:
    """As its C++ side does when memory is to be shared."""
    from torch._C._distributed_c10d import _resolve_process_group

    shared = DIST.HashStore()
    groups = [NamedRanks(f"these-{rank}", shared, rank, 2) for rank in range(2)]
    found = [_resolve_process_group(f"these-{rank}") for rank in range(2)]
    assert [(group.rank(), group.size()) for group in found] == [(0, 2), (1, 2)]
    for rank, first in enumerate((17, 0)):
        found[rank].get_group_store().set(f"Memory/{first}/{rank}", bytes([rank, 255, 0, 7]))
    assert found[0].get_group_store().get("Memory/17/1") == bytes([1, 255, 0, 7])
    assert found[1].get_group_store().get("Memory/0/0") == bytes([0, 255, 0, 7])
    del found, groups
    with pytest.raises(RuntimeError):
        _resolve_process_group("these-0")
