"""Memory of a GPU that the other ranks' GPUs read and write, where their links let them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.support import processors

# One process that uses multicast may take all GPUs of a host out of service. Read by torch and NCCL when they are first asked for memory.
NO_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}


def without_multicast() -> None:
    """Keeps NVLink's multicast off in this process and its children. To be called before a process group is made."""
    os.environ.update(NO_MULTICAST)


def reachable(device: torch.device, group: Any) -> bool:
    """Whether every rank of a process group, whose host side works, runs on a GPU of this machine that reaches all others'.

    All ranks get the same answer.
    """
    import torch.distributed as dist

    ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, (_host(), device.index), group=group)
    mine = device.type == "cuda" and len({host for host, _ in ranks}) == 1 and len({index for _, index in ranks}) == len(ranks)
    if mine:
        others = [index for _, index in ranks if index != device.index]
        count = torch.cuda.device_count()
        mine = all(index < count and torch.cuda.can_device_access_peer(device.index, index) for index in others)
    answers: list[Any] = [None] * len(ranks)
    dist.all_gather_object(answers, mine, group=group)
    return all(answers)


class PeerMemory:
    """The same number of bytes on every rank of a process group, as all of them see it. Made by all ranks together, and before any of
    them captures a collective of NCCL: a process that made one afterwards hung.

    Raises RuntimeError where the devices do not let each other in.
    """

    def __init__(self, nbytes: int, device: torch.device, group: Any) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.own: Tensor = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        with suppress(AttributeError):  # of torch that needs no telling
            symmetric.enable_symm_mem_for_group(group.group_name)
        self._handle = symmetric.rendezvous(self.own, group)
        self.rank: int = self._handle.rank
        pointers = self._handle.buffer_ptrs
        # A tensor may begin within what was shared, and does so at the same place on every rank.
        offset = self.own.data_ptr() - pointers[self.rank]
        self.addresses: list[int] = [pointer + offset for pointer in pointers]


def open_mailbox(room: int, device: torch.device, group: Any) -> Mailbox:
    """A mailbox between the ranks of a process group, all of which call this. room: words a program; see `PeerMemory`."""
    import torch.distributed as dist

    size = dist.get_world_size(group)
    shape = Mailbox.shape(size, room, min(Mailbox.shape(size, room)[0], processors(device)))
    memory = PeerMemory(8 * shape[0] * shape[1] * shape[2] * shape[3], device, group)
    box = Mailbox.over(memory.rank, memory.own.view(torch.int64).view(shape), memory.addresses)
    torch.cuda.synchronize(device)
    dist.barrier(group)  # all are empty before anybody writes
    return box


def _host() -> str:
    """This machine, while it runs."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    return socket.gethostname()
