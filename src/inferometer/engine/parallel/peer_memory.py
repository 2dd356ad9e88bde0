"""Memory of a GPU that the other ranks' GPUs read and write, where their links let them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import torch
from torch import Tensor

from inferometer.engine.parallel.exchange_store import NamedRanks
from inferometer.kernels.mailbox import PROGRAMS, Mailbox
from inferometer.kernels.support import processors, usable
from inferometer.nn.collective import Collective

# A program that uses multicast may take all GPUs of a host out of service. Read by torch and NCCL when they are first asked for memory.
NO_MULTICAST: Final = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}


def without_multicast() -> None:
    """Keeps NVLink's multicast off in this process and its children. To be called before it talks to other GPUs."""
    os.environ.update(NO_MULTICAST)


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks whose GPUs reach each other. host: how their processes talk; name: of these ranks, the same on all; known: to torch,
    by that name."""

    host: Collective
    device: torch.device
    name: str
    known: NamedRanks

    @classmethod
    def of(cls, host: Collective, store: Any, device: torch.device) -> Peers | None:
        """None, on all ranks, unless each has a GPU of its own on this machine, all of which reach each other.

        store: of torch.distributed, the same for all, through which they exchange handles. Every rank calls this at the same point.
        """
        if not host.minimum(_reaches_all(host, device)):
            return None
        name = host.broadcast(f"inferometer-{uuid4().hex}")
        return cls(host, device, name, NamedRanks(name, store, host.rank, host.size))

    def meet(self) -> None:
        """Waits until every rank's device has done what it was given."""
        torch.cuda.synchronize(self.device)
        self.host.minimum(0)


class UnsharedMemoryError(RuntimeError):
    """The GPUs' memory cannot be shared between the ranks; the message says why."""


class PeerMemory:
    """The same number of bytes on every rank, as all of them see it. Made by all ranks together, and before any of them records a
    collective of NCCL: a process that made one afterwards hung.

    own: this rank's, uint8. addresses: where each rank's lies, as seen from here. Raises UnsharedMemoryError, on all ranks, where one of
    them cannot share it.
    """

    def __init__(self, nbytes: int, peers: Peers) -> None:
        failure: Exception | None = None
        try:
            self._share(nbytes, peers)
        except Exception as error:  # noqa: BLE001  (whatever it is, the other ranks must not go on)
            failure = error
        if not peers.host.minimum(int(failure is None)):
            reason = "another rank cannot" if failure is None else " ".join(str(failure).split())[:300]
            raise UnsharedMemoryError(reason) from failure

    def _share(self, nbytes: int, peers: Peers) -> None:
        import torch.distributed._symmetric_memory as symmetric
        from torch._C._distributed_c10d import _SymmetricMemory

        self.own: Tensor = symmetric.empty(nbytes, dtype=torch.uint8, device=peers.device)
        # Not the function of this name in torch's module: that may ask Python's list of groups, in which these ranks are not.
        self._handle: Any = _SymmetricMemory.rendezvous(self.own, peers.name)
        pointers = self._handle.buffer_ptrs
        # A tensor may begin within what was shared, and does so at the same place on every rank.
        self._offset = self.own.data_ptr() - pointers[peers.host.rank]
        self.addresses: list[int] = [pointer + self._offset for pointer in pointers]

    def of(self, rank: int) -> Tensor:
        """A rank's bytes, uint8 (bytes,), in its own memory."""
        found: Tensor = self._handle.get_buffer(rank, (self._offset + self.own.numel(),), torch.uint8)
        return found[self._offset :]


def open_mailbox(room: int, peers: Peers, programs: int = PROGRAMS, *, overlaps: bool = True) -> Mailbox:
    """An empty mailbox between ranks, all of which call this. room: words a program; programs: fewer where a GPU holds fewer at once.

    overlaps: see `Mailbox`.
    """
    shape = Mailbox.shape(peers.host.size, room, peers.host.minimum(min(programs, processors(peers.device))))
    memory = PeerMemory(8 * shape[0] * shape[1] * shape[2] * shape[3], peers)
    box = Mailbox.over(peers.host.rank, memory.own.view(torch.int64).view(shape), memory.addresses, overlaps=overlaps)
    peers.meet()  # all are empty before anybody writes
    return box


def _reaches_all(host: Collective, device: torch.device) -> int:
    """1 if this rank's GPU reaches every other rank's, 0 if not."""
    if device.type != "cuda":
        host.gather(torch.zeros(1, 2, dtype=torch.int64))
        return 0
    visible = {_digest(str(torch.cuda.get_device_properties(i).uuid)): i for i in range(torch.cuda.device_count())}
    own = next(digest for digest, index in visible.items() if index == device.index)
    ranks = host.gather(torch.tensor([[_digest(_host()), own]], dtype=torch.int64)).view(host.size, 2).tolist()
    if not usable(device) or {machine for machine, _ in ranks} != {_digest(_host())} or len({card for _, card in ranks}) < host.size:
        return 0
    others = [visible.get(card) for _, card in ranks if card != own]
    return int(all(index is not None and torch.cuda.can_device_access_peer(visible[own], index) for index in others))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _host() -> str:
    """This machine, while it runs."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    return socket.gethostname()
