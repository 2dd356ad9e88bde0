"""How long a GPU takes for what it is given."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch


def median_seconds(run: Callable[[], object], device: torch.device, *, repeats: int, before: Callable[[], object] | None = None) -> float:
    """Of a run on the device's current stream, by the device's own clock. before: called ahead of each, which is no part of its time.

    Waits for each run, so that none begins behind another.
    """
    event: Any = torch.cuda.Event
    times: list[float] = []
    with torch.cuda.device(device):
        for _ in range(repeats):
            if before is not None:
                before()
            first, last = event(enable_timing=True), event(enable_timing=True)
            first.record()
            run()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)
