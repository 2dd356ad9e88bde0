"""The link between the host's memory and a GPU, and a host that has to be asked for its memory."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second between pinned host memory and the device: in, out, and both at once together."""

    bytes_in_s: float
    bytes_out_s: float
    bytes_both_s: float


def measure_link(size: int = GIB, repeats: int = 5) -> LinkRates:
    """As large copies go."""
    import torch

    from inferometer.nn.host_buffer import HostBuffer

    device = torch.device("cuda", 0)
    here, there = [HostBuffer(size, device) for _ in range(2)], [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def rate(*ways: str) -> float:
        def once() -> None:
            if "in" in ways:
                with torch.cuda.stream(streams[0]):
                    there[0].copy_(here[0].tensor, non_blocking=True)
            if "out" in ways:
                with torch.cuda.stream(streams[1]):
                    here[1].tensor.copy_(there[1], non_blocking=True)

        once()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            once()
        torch.cuda.synchronize()
        return len(ways) * repeats * size / (time.perf_counter() - begin)

    found = LinkRates(rate("in"), rate("out"), rate("in", "out"))
    for buffer in here:
        buffer.close()
    return found


def grow_host_memory(wanted: int, step: int = 2 * GIB, spare: int = 8 * GIB, patience_s: float = 20) -> None:
    """Takes memory step by step and lets it go, until `wanted` bytes are free or the machine has no more.

    A virtual machine may show a part of what it can have, and be given more as that is taken: without a limit of
    host memory a model is refused that would have room in the end, and with one loading waits layer by layer.
    """
    from inferometer.hardware.host_memory import free_host_bytes

    held: list[mmap.mmap] = []
    while len(held) * step + free_host_bytes() < wanted:
        begin = time.perf_counter()
        while (free := free_host_bytes()) < spare + step and time.perf_counter() < begin + patience_s:
            time.sleep(0.05)
        if free < spare + step:
            break
        held.append(mmap.mmap(-1, step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        held[-1].madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, step, mmap.PAGESIZE):
            held[-1][at] = 1
    for taken in held:
        taken.close()
