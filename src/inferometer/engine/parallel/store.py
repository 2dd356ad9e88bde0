"""The ranks' store of torch.distributed: a small table over TCP that groups find themselves by."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed

Store = Any
"""torch.distributed.Store, which torch does not declare."""

_DIST: Any = torch.distributed
_LIMIT = timedelta(minutes=5)


def host_store(door: socket.socket) -> Store:
    """A store that listens at `door`, which becomes its own."""
    host, port = door.getsockname()[:2]
    return _DIST.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_LIMIT, master_listen_fd=door.detach())


def join_store(host: str, port: int, *, master: bool = False) -> Store:
    """The store that listens there; `master`: made here, at any address of this machine. Waits for it."""
    return _DIST.TCPStore(host, port, is_master=master, wait_for_workers=False, timeout=_LIMIT)


def part_of(store: Store, name: str) -> Store:
    """A part of a store with names of its own."""
    return _DIST.PrefixStore(name, store)
