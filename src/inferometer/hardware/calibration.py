"""What was measured on this machine, on file under its fingerprint: read and written here, measured by bench/machine/calibrate.py."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from inferometer.errors import UserError, shown
from inferometer.hardware.device import Dtype
from inferometer.model.json_file import replace_json
from inferometer.model.store import cache_dir

SCHEMA_VERSION = 3
READ_VERSIONS = (1, 2, SCHEMA_VERSION)
"""Version 1 had no sums over ranks, 1 and 2 no products by this program's own kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Ceilings measured on one device, each the median of its repeats.

    `copy_bandwidth_bytes_s` counts every byte once read and once written (a copy of n bytes moves 2n). `matmul_flop_s` is the best of the
    sizes tried, by the matrix library; `own_matmul_flop_s`, on a CPU, by the compiled kernels that run models there. `launch_s` is what the
    host spends to start one tiny operation; `graph_kernel_s` what one such kernel takes inside a captured graph. The host link is measured
    from and to pinned memory. `peer_bytes_s` is what a copy to another GPU of this machine carries, in one direction, and `peer_sum_s` the
    sum of one word over the two in a captured graph: once over the link and back at the same time, a launch included. `sums_s` is what a
    sum over ranks takes, by their number and by the bytes that each rank has: over GPUs that write into each other's memory with residual
    and norm, elsewhere the sum alone. What was not measured is None or absent, with the reason in `notes`. `device` is the device as torch
    names it, `slug` the catalogue's name for it.
    """

    device: str
    device_name: str
    slug: str | None
    measured_at: str
    torch_version: str
    threads: int | None
    seconds_spent: float
    copy_bandwidth_bytes_s: float
    read_bandwidth_bytes_s: float
    matmul_flop_s: Mapping[Dtype, float]
    launch_s: float
    own_matmul_flop_s: Mapping[Dtype, float] = field(default_factory=dict)
    graph_kernel_s: float | None = None
    host_to_device_bytes_s: float | None = None
    device_to_host_bytes_s: float | None = None
    peer_bytes_s: float | None = None
    peer_sum_s: float | None = None
    sums_s: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive = {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)}
        for name in _RATES:
            positive |= {f"{name}.{dtype}": rate for dtype, rate in getattr(self, name).items()}
        for ranks, times in self.sums_s.items():
            if not (isinstance(ranks, int) and ranks > 1 and times):
                raise ValueError(f"sums_s: of 2 ranks or more, each with what was measured, not {ranks!r}")
            if not all(isinstance(nbytes, int) and nbytes > 0 for nbytes in times):
                raise ValueError(f"sums_s.{ranks}: sizes are whole numbers of bytes")
            positive |= {f"sums_s.{ranks}.{nbytes}": seconds for nbytes, seconds in times.items()}
        for name, value in positive.items():
            if not (value is None and name in _OPTIONAL) and not (_is_number(value) and 0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number, not {value!r}")
        for name in _RATES:
            for dtype in getattr(self, name):
                if dtype not in get_args(Dtype):
                    raise ValueError(f"{name}: unknown type {dtype!r}")

    @property
    def bandwidth_bytes_s(self) -> float:
        """The memory ceiling: the better of copying and reading."""
        return max(self.copy_bandwidth_bytes_s, self.read_bandwidth_bytes_s)

    def with_sums_of(self, former: Calibration | None) -> Calibration:
        """With the former one's sums over the numbers of ranks that were not measured this time, and a note of when each was."""
        kept = {} if former is None else {ranks: times for ranks, times in former.sums_s.items() if ranks not in self.sums_s}
        if former is None or not kept:
            return self
        notes = []
        for ranks in kept:
            told = f"{_KEPT.format(ranks=ranks)} "
            notes.append(next((note for note in former.notes if note.startswith(told)), f"{told}{former.measured_at}"))
        return replace(self, sums_s=MappingProxyType({**kept, **self.sums_s}), notes=(*self.notes, *notes))

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        sums = {str(ranks): {str(nbytes): seconds for nbytes, seconds in times.items()} for ranks, times in self.sums_s.items()}
        rates = {name: dict(getattr(self, name)) for name in _RATES}
        return {**plain, **rates, "samples": dict(self.samples), "notes": list(self.notes), "sums_s": sums}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Calibration:
        """From what `to_json` gave. Raises ValueError naming the key that is missing, unknown or impossible."""
        known = {item.name for item in fields(cls)}
        strange = sorted(set(values) - known)
        if strange:
            raise ValueError(f"unknown key {strange[0]}")
        for name in _TEXTS:
            if not isinstance(values.get(name), str):
                raise ValueError(f"{name} must be a string")
        own = values.get("own_matmul_flop_s", {})
        for name, given in (("matmul_flop_s", values.get("matmul_flop_s")), ("own_matmul_flop_s", own), ("samples", values.get("samples"))):
            if not isinstance(given, dict):
                raise ValueError(f"{name} must be an object")
        for name in _REQUIRED:
            if values.get(name) is None:
                raise ValueError(f"{name} is missing")
        notes = values.get("notes", [])
        if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
            raise ValueError("notes must be a list of strings")
        sums = values.get("sums_s", {})
        if not (isinstance(sums, dict) and all(isinstance(times, dict) for times in sums.values())):
            raise ValueError("sums_s must be an object of objects")
        return cls(
            **{
                **values,
                "matmul_flop_s": MappingProxyType(values["matmul_flop_s"]),
                "own_matmul_flop_s": MappingProxyType(own),
                "sums_s": MappingProxyType({_count(ranks): MappingProxyType(_sized(times)) for ranks, times in sums.items()}),
                "samples": MappingProxyType(values["samples"]),
                "notes": tuple(notes),
            }
        )


_KEPT = "sums over {ranks} ranks: kept from"
_TEXTS = ("device", "device_name", "measured_at", "torch_version")
_RATES = ("matmul_flop_s", "own_matmul_flop_s")
_REQUIRED = ("copy_bandwidth_bytes_s", "read_bandwidth_bytes_s", "launch_s", "seconds_spent")
_OPTIONAL = ("graph_kernel_s", "host_to_device_bytes_s", "device_to_host_bytes_s", "peer_bytes_s", "peer_sum_s")


@dataclass(frozen=True, slots=True)
class Calibrations:
    """What is on file for a machine, by the device's torch name. `notice` says in a line why a file was ignored; None if none was."""

    devices: Mapping[str, Calibration]
    notice: str | None = None

    def for_slug(self, slug: str) -> Calibration | None:
        """The calibration of a device by its catalogue name; None if it was not measured here."""
        return next((item for item in self.devices.values() if item.slug == slug), None)


def calibration_folder() -> Path:
    """Where calibrations are kept: `calibration` in the cache."""
    return cache_dir() / "calibration"


def load_calibrations(fingerprint: str, folder: Path | None = None) -> Calibrations:
    """What was measured on the machine of this fingerprint. A file that is corrupt or of other hardware is ignored, with a notice."""
    folder = folder or calibration_folder()
    path = folder / f"{fingerprint}.json"
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        try:
            others = any(folder.glob("*.json"))
        except OSError:
            others = False
        notice = f"the calibrations in {folder} are of other hardware, cores or driver; `inferometer devices --calibrate` measures anew"
        return Calibrations({}, notice if others else None)
    except (OSError, UnicodeDecodeError) as error:
        return _ignored(path, str(error))
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict):
            raise ValueError("not an object")
        if stored.get("schema_version") not in READ_VERSIONS:
            known = " and ".join(map(str, READ_VERSIONS))
            raise ValueError(f"schema version {shown(stored.get('schema_version'))}, this program reads {known}")
        if stored.get("fingerprint") != fingerprint:
            raise ValueError("measured on other hardware")
        devices = {name: Calibration.from_json(values) for name, values in stored["devices"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return _ignored(path, str(error))
    return Calibrations(MappingProxyType(devices))


def save_calibration(calibration: Calibration, fingerprint: str, folder: Path | None = None) -> Path:
    """Store it beside the machine's other devices; the file is replaced in one step, so that a reader never sees half of it.

    Raises UserError if the folder cannot be written.
    """
    folder = folder or calibration_folder()
    path = folder / f"{fingerprint}.json"
    devices = {**load_calibrations(fingerprint, folder).devices, calibration.device: calibration}
    document = {
        "schema_version": SCHEMA_VERSION,
        "fingerprint": fingerprint,
        "devices": {name: item.to_json() for name, item in devices.items()},
    }
    try:
        replace_json(path, document)
    except OSError as error:
        raise UserError(
            f"{folder}: the calibration cannot be stored ({error.strerror}); set INFEROMETER_HOME to a writable folder"
        ) from error
    return path


def _ignored(path: Path, reason: str) -> Calibrations:
    return Calibrations({}, f"{path} is ignored ({' '.join(reason.split())}); `inferometer devices --calibrate` writes it anew")


def _count(name: str) -> int:
    """A number that JSON has as a key."""
    if not (name.isascii() and name.isdigit()):
        raise ValueError(f"sums_s: {shown(name)} is no whole number")
    return int(name)


def _sized(times: Mapping[str, float]) -> dict[int, float]:
    return {_count(nbytes): seconds for nbytes, seconds in times.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
