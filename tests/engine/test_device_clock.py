"""The device's clock, against a device that takes as long as it is told."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from inferometer.engine.device_clock import median_seconds


def test_the_median_run_counts_and_what_goes_before_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, takes, said = 0.0, iter([5.0, 1.0, 3.0]), []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now

        def synchronize(self) -> None:
            said.append("waited")

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    def before() -> None:
        nonlocal now
        now += 100.0
        said.append("before")

    def run() -> None:
        nonlocal now
        now += next(takes)
        said.append("run")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    assert median_seconds(run, torch.device("cuda", 1), repeats=3, before=before) == 3.0e-3
    assert said == ["before", "run", "waited"] * 3
