"""Peak memory of a case, with a device that says what it is told to."""

from __future__ import annotations

import pytest
import torch

from inferometer.bench.backends.backend import PageUse
from inferometer.bench.measurement import peak_memory
from inferometer.bench.measurement.peak_memory import PeakMeter
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes of a GPU's allocator, to be set."""
    told = {"memory_allocated": 0, "max_memory_allocated": 0, "max_memory_reserved": 0}
    for name in told:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: told[name])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))
    return told


def test_of_the_pool_only_pages_in_use_count(card: dict[str, int]) -> None:
    meter = PeakMeter(torch.device("cuda"), alone=True)
    card |= {"memory_allocated": 600, "max_memory_allocated": 640, "max_memory_reserved": 650}
    meter.start(600)
    meter.stop(PageUse(pages=20, peak=15, page_size=16, page_bytes=10))
    assert meter.peak.allocated == 640 - 200 + 150
    assert (meter.peak.reserved, meter.peak.device) == (650, 700)
    meter.start(600)
    meter.stop(PageUse(pages=20, peak=20, page_size=16, page_bytes=10))
    assert meter.peak.allocated == 640
    meter.start(600)
    meter.stop(PageUse(pages=20, peak=1, page_size=16, page_bytes=10))
    assert meter.peak.allocated == 640  # the largest of the runs


def test_what_others_keep_is_taken_off(card: dict[str, int]) -> None:
    meter = PeakMeter(torch.device("cuda"), alone=False)
    card |= {"memory_allocated": 600, "max_memory_allocated": 640}
    meter.start(450)
    meter.stop()
    assert meter.peak.allocated == 640 - 150
    assert meter.peak.reserved is meter.peak.device is None


def test_the_cpu_knows_nothing() -> None:
    meter = PeakMeter(torch.device("cpu"), alone=True)
    meter.start(5)
    meter.stop(PageUse(pages=2, peak=1, page_size=16, page_bytes=10))
    assert meter.peak.allocated is None


def test_the_device_figure_is_the_processs_own_where_the_driver_knows_it(card: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Sensors:
        def read(self) -> Snapshot:
            return Snapshot(0.0, {"gpu_process_memory_bytes": Reading(640, "bytes")})

    monkeypatch.setattr(peak_memory, "telemetry", lambda device: Sensors())
    meter = PeakMeter(torch.device("cuda"), alone=True)
    card |= {"memory_allocated": 500, "max_memory_allocated": 510, "max_memory_reserved": 520}
    meter.start(500)
    meter.stop()
    assert meter.peak.device == 640
