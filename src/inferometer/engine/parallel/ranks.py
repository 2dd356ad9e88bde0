"""The ranks of a model, as each of them sees them: rank 0 leads, the others do what it does, one rank alone does it by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

from inferometer.engine.parallel.groups import collective
from inferometer.engine.parallel.store import Store
from inferometer.nn.collective import ALONE, Collective


class RanksError(RuntimeError):
    """A rank has ended, failed or stopped answering, and all have ended with it; the message says which, and why."""


class Ranks(Protocol):
    """One rank's view: rank, of size; local_rank, of local_size on its machine; leads: whether it is the one that is asked."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    def collective(self, device: torch.device, *, invariant: bool) -> Collective:
        """The way between the ranks' models, made when it is first asked for: by every rank at the same point.

        invariant: no bit that it gives depends on what is beside it.
        """
        ...


class Solo:
    """One rank alone."""

    rank = local_rank = 0
    size = local_size = 1
    leads = True

    def collective(self, device: torch.device, *, invariant: bool) -> Collective:
        """Nobody to talk to."""
        return ALONE


SOLO: Final = Solo()


class Follower:
    """A rank that does what it is told. store: finds the ranks' store. address: of this machine, as the others reach it."""

    leads = False

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, address: str, store: Callable[[], Store]) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self._address = address
        self._store = store
        self._collectives: dict[tuple[str, bool], Collective] = {}

    def collective(self, device: torch.device, *, invariant: bool) -> Collective:
        """Made when it is first asked for."""
        kind = device.type, invariant
        if device.type == "cuda":
            torch.cuda.set_device(device)  # this process has no other
        if kind not in self._collectives:
            self._collectives[kind] = collective(device, self._store(), self.rank, self.size, self._address, invariant=invariant)
        return self._collectives[kind]
