"""The groups of torch.distributed that ranks compute through: gloo on the host, and NCCL between GPUs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import torch

from inferometer.engine.parallel.chooser import gpu_collective
from inferometer.engine.parallel.store import Store, part_of
from inferometer.nn.collective import Collective
from inferometer.nn.gloo_collective import GlooCollective

LIMIT: Final = timedelta(minutes=30)
"""Of one call. That a rank is gone or hangs is found out within seconds by other means; ranks may be apart by as long as one of them loads
or compiles what another has already."""


def gloo_group(store: Store, rank: int, size: int, address: str) -> Any:
    """A group over the host's network, through the interface that has `address` unless GLOO_SOCKET_IFNAME names one.

    It is in no registry of torch's: a process may have several, and whatever groups its user makes.
    """
    dist: Any = torch.distributed  # most of which it does not declare
    options = dist.ProcessGroupGloo._Options()
    options._timeout = LIMIT
    if "GLOO_SOCKET_IFNAME" in os.environ:
        options._devices = [dist.ProcessGroupGloo.create_device(interface=os.environ["GLOO_SOCKET_IFNAME"].partition(",")[0])]
    else:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    backend = dist.ProcessGroupGloo(part_of(store, "gloo"), rank, size, options)
    group = dist.ProcessGroup(part_of(store, "group"), rank, size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, backend)
    return group


def collective(device: torch.device, store: Store, rank: int, size: int, address: str, *, invariant: bool) -> Collective:
    """The way between ranks that compute on such a device; invariant: no bit that it gives depends on what is beside it.

    Every rank calls this at the same point, once for each kind of device and of numerics.
    """
    kind = f"{device.type}-{'invariant' if invariant else 'fastest'}"
    host = GlooCollective(gloo_group(part_of(store, f"{kind}-host"), rank, size, address))
    if device.type != "cuda":
        return host
    return gpu_collective(host, part_of(store, kind), device, invariant=invariant, limit=LIMIT)
