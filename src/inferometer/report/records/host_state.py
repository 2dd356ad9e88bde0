"""What sensors said of card and host right after the runs of cases: whether clocks were held down, and whether others were at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from inferometer.bench.records.record import Record

# Sensor -> what a reader calls it.
_RANGES: Mapping[str, str] = MappingProxyType(
    {
        "gpu_sm_clock_mhz": "SM clock (MHz)",
        "gpu_memory_clock_mhz": "memory clock (MHz)",
        "gpu_temperature_c": "GPU temperature (C)",
        "gpu_processes": "processes on the GPU",
        "host_load": "load of the host (threads, a minute)",
    }
)
# Not held down: there was nothing to do.
_HARMLESS = frozenset({"idle"})


def state_of(records: Sequence[Record]) -> dict[str, str]:
    """By name, the least and the most that was read over the cases that ran, and how many found the clocks held down, by what.

    Nothing of a sensor that no case has.
    """
    said = [record.environment["sensors"] for record in records if record.status == "ok" and record.environment.get("sensors")]
    found = {}
    for sensor, name in _RANGES.items():
        values = [value for each in said if isinstance(value := _value(each, sensor), int | float)]
        if values:
            least, most = min(values), max(values)
            found[name] = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    reasons = [value for each in said if isinstance(value := _value(each, "gpu_throttle_reasons"), list | tuple)]
    if reasons:
        held = Counter(reason for each in reasons for reason in each if isinstance(reason, str) and reason not in _HARMLESS)
        found["clocks held down by"] = (
            ", ".join(f"{reason} ({count} of {len(reasons)} cases)" for reason, count in held.items()) or "nothing"
        )
    return found


def _value(sensors: Any, name: str) -> Any:
    reading = sensors.get(name) if isinstance(sensors, Mapping) else None
    return reading.get("value") if isinstance(reading, Mapping) else None
