"""What a page says of card and host while cases ran."""

from __future__ import annotations

from typing import Any

from report_records import HERE, made

from inferometer.bench.records.record import Record
from inferometer.report.records.host_state import state_of


def case(status: str = "ok", **sensors: Any) -> Record:
    read = {name: {"value": value, "unit": "", "reason": None} for name, value in sensors.items()}
    changes: dict[str, Any] = {"environment": {**HERE, "sensors": read}, "status": status}
    return made([1.0], [1.0], **changes) if status == "ok" else made(evidence="full", **changes)


def test_ranges_and_what_held_clocks_down() -> None:
    cases = [
        case(gpu_sm_clock_mhz=1980.0, host_load=1.5, gpu_throttle_reasons=("idle",), gpu_processes=1),
        case(gpu_sm_clock_mhz=1755.0, host_load=12.25, gpu_throttle_reasons=("power cap", "idle"), gpu_processes=1),
        case("oom", gpu_sm_clock_mhz=300.0),
    ]
    assert state_of(cases) == {
        "SM clock (MHz)": "1755 to 1980",
        "processes on the GPU": "1",
        "load of the host (threads, a minute)": "1.5 to 12.25",
        "clocks held down by": "power cap (1 of 2 cases)",
    }


def test_clocks_that_nothing_held_down() -> None:
    assert state_of([case(gpu_throttle_reasons=["idle"])]) == {"clocks held down by": "nothing"}


def test_a_reason_that_is_no_text_is_none() -> None:
    assert state_of([case(gpu_throttle_reasons=[["power cap"], None, "power cap"])]) == {"clocks held down by": "power cap (1 of 1 cases)"}


def test_what_no_sensor_said_is_not_said() -> None:
    assert state_of([case(gpu_sm_clock_mhz=None), made([1.0], [1.0], environment={"sensors": "odd"})]) == {}
    assert state_of([]) == {}
