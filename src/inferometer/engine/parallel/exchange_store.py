"""A store through which ranks exchange handles of memory, whatever each has exchanged with others before."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import torch.distributed

_DIST: Any = torch.distributed
_NUMBERED: Final = re.compile(r"(?<=/)\d+(?=/\d+$)")
"""Of a key, the number of the exchange, before that of the rank."""


class ExchangeStore(_DIST.Store):  # type: ignore[misc]
    """Another store, in whose keys exchanges are numbered from 0 in the order in which they are first seen here.

    Whoever gives it to torch keeps it as well: torch holds on to no more than its C++ half.

    torch numbers a process's exchanges of symmetric memory across all groups that it is in. Ranks of which one has been in a group before,
    as a process that makes one model after another has, would wait for each other under different names.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store
        self._numbers: dict[str, int] = {}

    def _name(self, key: str) -> str:
        return _NUMBERED.sub(lambda found: str(self._numbers.setdefault(found[0], len(self._numbers))), key)

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(self._name(key), value)

    def get(self, key: str) -> bytes:
        found: bytes = self._store.get(self._name(key))
        return found

    def add(self, key: str, amount: int) -> int:
        found: int = self._store.add(self._name(key), amount)
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        names = [self._name(key) for key in keys]
        self._store.wait(names) if timeout is None else self._store.wait(names, timeout)

    def check(self, keys: list[str]) -> bool:
        found: bool = self._store.check([self._name(key) for key in keys])
        return found


class NamedRanks:
    """Ranks under a name by which torch finds what they exchange through, as long as this lives. The name must be new in this process.

    store: of torch.distributed, the same for all.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int) -> None:
        c10d: Any = import_module("torch._C._distributed_c10d")
        self._store = ExchangeStore(store)
        # It has no way to compute anything: that is not asked of it.
        self._group = _DIST.ProcessGroup(self._store, rank, size)
        c10d._register_process_group(name, self._group)
