"""A cap on the memory that this process may take for a case: on a GPU by torch's allocator, on a CPU by the system."""

from __future__ import annotations

import resource

import torch

from inferometer.bench.machine.memory import data_bytes


class MemoryCap:
    """`own_bytes` is what the process holds before any case, which no cap of a case counts."""

    def __init__(self) -> None:
        self._own_bytes = data_bytes() or 0
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def set(self, device: torch.device, limit_bytes: int | None) -> None:
        """From now on no more than `limit_bytes` can be allocated on `device`; None takes the cap away.

        On a CPU it is RLIMIT_DATA, which counts memory that is written to. RLIMIT_AS also counts what is only reserved or mapped from
        files: libraries, stacks of threads, a checkpoint read in place.
        """
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(1.0 if limit_bytes is None else min(limit_bytes / total, 1.0), device)
            return
        soft, hard = self._before
        if limit_bytes is not None:
            allowed = (self._own_bytes + limit_bytes, soft, hard)
            soft = min(limit for limit in allowed if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
