"""`inferometer devices`: the catalogue, what is here, and what it was measured to reach."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from inferometer.bench.machine.doubt import DOUBTFUL
from inferometer.cli.options import positive_number
from inferometer.errors import UserError
from inferometer.hardware.calibration import Calibration, Calibrations, load_calibrations, save_calibration
from inferometer.hardware.catalogue import CPU, catalogue
from inferometer.hardware.detect import Machine, detect
from inferometer.hardware.device import DeviceSpec, Dtype
from inferometer.hardware.links import link_kinds
from inferometer.hardware.telemetry import Telemetry
from inferometer.model.byte_size import gib

_GIB = 1 << 30
_SECONDS = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--calibrate", action="store_true", help="measure the present device and keep the result")
    parser.add_argument("--device", metavar="auto|cpu|cuda[:N]", help="what --calibrate measures (default: the first GPU)")
    parser.add_argument(
        "--seconds", type=positive_number, metavar="S", help="about how long --calibrate takes (default: 10); less: without ranks"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalogue and this machine; with --calibrate measures first. Exit code 0."""
    for flag, value in (("--device", arguments.device), ("--seconds", arguments.seconds)):
        if value is not None and not arguments.calibrate:
            raise UserError(f"{flag} {value} says how --calibrate measures; add --calibrate, or leave {flag} out")
    machine = detect()
    if arguments.calibrate:
        _calibrate(machine, "auto" if arguments.device is None else arguments.device, arguments.seconds or _SECONDS)
    calibrations = load_calibrations(machine.fingerprint)
    if arguments.json:
        print(json.dumps(_document(machine, calibrations), indent=2))
        return 0
    if calibrations.notice is not None:
        print(f"inferometer: {calibrations.notice}", file=sys.stderr)
    print("\n".join([*_table(), "", *_here(machine, calibrations)]))
    return 0


def _calibrate(machine: Machine, device: str, seconds: float) -> None:
    # Only this needs torch.
    from inferometer.bench.machine.calibrate import calibrate

    measured = calibrate(device, budget_s=seconds, progress=lambda part: print(f"calibrating: {part}", file=sys.stderr))
    former = load_calibrations(machine.fingerprint).devices.get(measured.device)
    stored = measured.with_sums_of(former)
    path = save_calibration(stored, machine.fingerprint)
    print(f"calibrated {measured.device} in {measured.seconds_spent:.1f} s, stored in {path}", file=sys.stderr)
    for note in (*filter(_is_doubt, measured.notes), *stored.notes[len(measured.notes) :]):
        print(note, file=sys.stderr)


def _is_doubt(note: str) -> bool:
    return note.startswith(DOUBTFUL)


def _table() -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("SLUG", "MEMORY", "BANDWIDTH", "FP16", "FP8", "POWER", "LINK, ONE WAY"),
        ("", "GiB", "GB/s", "TFLOP/s", "TFLOP/s", "W", "GB/s"),
    ]
    rows += [_row(device) for device in catalogue().values()]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in range(1, 6)), row[6]]
        lines.append("  ".join(cells).rstrip())
    return [
        *lines,
        "",
        "Datasheet rates, dense, with a float32 accumulator. `cpu` is this machine; a TOML file describes any other device.",
    ]


def _row(device: DeviceSpec) -> tuple[str, ...]:
    links = ", ".join(f"{port.kind} {port.bandwidth_bytes_s / 1e9:.4g}" for port in device.ports)
    return (
        device.slug,
        f"{device.memory_bytes / _GIB:.4g}",
        _scaled(device.memory_bandwidth_bytes_s, 1e9),
        _scaled(device.matmul_flop_s("float16"), 1e12),
        _scaled(device.matmul_flop_s("fp8"), 1e12),
        _scaled(device.power_limit_w, 1),
        links,
    )


def _here(machine: Machine, calibrations: Calibrations) -> list[str]:
    host = machine.host
    memory = "memory unknown" if host.memory_bytes is None else f"{host.memory_bytes / _GIB:.1f} GiB"
    lines = ["Here:", f"  cpu: {host.model}, {host.cores} cores, {memory}", *_measured(CPU, calibrations.devices.get(CPU), None)]
    for index, gpu in enumerate(machine.gpus):
        slug = machine.slug(index)
        size = "memory unknown" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _GIB:.1f} GiB"
        known = slug or "not in the catalogue"
        lines.append(f"  cuda:{index}: {gpu.name} ({known}), {size}, driver {gpu.driver or 'unknown'}")
        lines += _measured(f"cuda:{index}", calibrations.devices.get(f"cuda:{index}"), catalogue().get(slug or ""))
    if not machine.gpus:
        lines.append("  no GPU that NVIDIA's driver shows")
    return lines


def _measured(name: str, calibration: Calibration | None, device: DeviceSpec | None) -> list[str]:
    """Lines about what was measured, each rate with its part of the datasheet's if that is known."""
    if calibration is None:
        return [f"    not calibrated: inferometer devices --calibrate --device {name}"]
    shares = _shares(calibration, device)
    figures = [
        ("copy", calibration.copy_bandwidth_bytes_s / 1e9, "GB/s", shares["copy_bandwidth"]),
        ("read", calibration.read_bandwidth_bytes_s / 1e9, "GB/s", shares["read_bandwidth"]),
        *((dtype, rate / 1e12, "TFLOP/s", shares["matmul"][dtype]) for dtype, rate in calibration.matmul_flop_s.items()),
        *((f"own {dtype}", rate / 1e12, "TFLOP/s", None) for dtype, rate in calibration.own_matmul_flop_s.items()),
        ("launch", calibration.launch_s * 1e6, "us", None),
    ]
    links = (("from host", calibration.host_to_device_bytes_s), ("to host", calibration.device_to_host_bytes_s))
    for direction, rate in (*links, ("to a GPU", calibration.peer_bytes_s)):
        if rate is not None:
            figures.append((direction, rate / 1e9, "GB/s", None))
    if calibration.peer_sum_s is not None:
        figures.append(("GPUs' sum", calibration.peer_sum_s * 1e6, "us", None))
    lines = [f"    calibrated {calibration.measured_at}:"]
    for figure, value, unit, share in figures:
        part = "" if share is None else f"  {share:.1f} % of datasheet"
        lines.append(f"      {figure:<14}{value:>10.4g} {unit}{part}")
    for ranks, times in calibration.sums_s.items():
        told = ", ".join(f"{seconds * 1e6:.4g} of {gib(nbytes, 0)}" for nbytes, seconds in times.items())
        lines.append(f"      sums over {ranks}, us: {told}")
    lines += [f"      {note}" for note in calibration.notes if note.startswith("sums over ") or _is_doubt(note)]
    return lines


def _shares(calibration: Calibration, device: DeviceSpec | None) -> dict[str, Any]:
    """Percent of the datasheet; None where there is none."""

    def percent(value: float, peak: float | None) -> float | None:
        return None if peak is None else 100 * value / peak

    def peak(dtype: Dtype) -> float | None:
        return None if device is None else device.matmul_flop_s(dtype)

    bandwidth = None if device is None else device.memory_bandwidth_bytes_s
    return {
        "copy_bandwidth": percent(calibration.copy_bandwidth_bytes_s, bandwidth),
        "read_bandwidth": percent(calibration.read_bandwidth_bytes_s, bandwidth),
        "matmul": {dtype: percent(rate, peak(dtype)) for dtype, rate in calibration.matmul_flop_s.items()},
    }


def _document(machine: Machine, calibrations: Calibrations) -> dict[str, Any]:
    host = machine.host
    here: list[dict[str, Any]] = [
        {
            "device": CPU,
            "slug": CPU,
            "name": host.model,
            "cores": host.cores,
            "instructions": list(host.flags),
            "memory_bytes": host.memory_bytes,
            "cache_bytes": host.cache_bytes,
            "telemetry": Telemetry().read().to_json(),
        }
    ]
    for index, gpu in enumerate(machine.gpus):
        here.append(
            {
                "device": f"cuda:{index}",
                "slug": machine.slug(index),
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "driver": gpu.driver,
                "telemetry": Telemetry(gpu.index).read().to_json(),
            }
        )
    for entry in here:
        calibration = calibrations.devices.get(entry["device"])
        device = catalogue().get(entry["slug"] or "")
        entry["calibration"] = None if calibration is None else calibration.to_json()
        entry["percent_of_datasheet"] = None if calibration is None else _shares(calibration, device)
    return {
        "devices": [device.to_json() for device in catalogue().values()],
        "links": [kind.to_json() for kind in link_kinds().values()],
        "here": here,
        "fingerprint": machine.fingerprint,
        "notice": calibrations.notice,
    }


def _scaled(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.4g}"
