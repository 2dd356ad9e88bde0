"""A device from a TOML table: the catalogue's own entries and a user's file, by the same reader."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inferometer.errors import UserError, shown
from inferometer.hardware.device import DTYPES, TOPOLOGIES, DeviceSpec, Port, Rates, Topology
from inferometer.hardware.links import link_kinds
from inferometer.hardware.table import Table

GIB = 1 << 30
MIB = 1 << 20

# A host's root complexes join all the cards of one machine; no product has more than this.
_HOST_JOINS = 16

RATE_KEYS = ("tensor_tflop_s", "tensor_half_accumulate_tflop_s", "tensor_sparse_tflop_s", "vector_tflop_s")


def read_device_file(path: Path, base: Callable[[str], Mapping[str, Any]]) -> DeviceSpec:
    """The device of a user's TOML file: one table at the top level with the keys of catalogue.toml.

    `base = "SLUG"` takes every key that the file leaves out from a catalogued device ("an H100 with twice the bandwidth"); `base` here
    turns a slug into its table. Raises UserError naming the file and the key.
    """
    try:
        # Some editors put a mark of byte order in front, which is no TOML.
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a device's slug or a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file ({' '.join(str(error).split())})") from error
    except RecursionError:
        raise UserError(f"{path}: not a TOML file (nested too deeply)") from None
    except ValueError as error:  # a name with a NUL, as a record from elsewhere may have it
        raise UserError(f"{shown(str(path))}: {error}; name a device's slug or a readable TOML file") from error
    slug = values.pop("slug", path.stem)
    if not isinstance(slug, str) or not slug:
        raise UserError(f"{path}: slug must be a string that is not empty, not {shown(slug)}")
    parent = values.pop("base", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise UserError(f"{path}: base must be a device's slug, not {shown(parent)}")
        try:
            inherited = dict(base(parent))
        except UserError as error:
            raise UserError(f"{path}: base: {error}") from error
        # A figure that is given anew no longer stems from the base's datasheet, and its checks against the old one would mislead.
        inherited.pop("driver_names", None)
        inherited.pop("tensor_sparse_tflop_s", None)
        if "memory_gib" in values:
            inherited.pop("visible_memory_mib", None)
        inherited["sources"] = {key: title for key, title in inherited.get("sources", {}).items() if key in inherited and key not in values}
        inherited["source"] = values.get("source", f"{path.name}, else as {parent}: {inherited['source']}")
        values = {**inherited, **values}
    values.setdefault("source", path.name)
    return read_device(values, slug, str(path))


def read_device(values: Mapping[str, Any], slug: str, where: str) -> DeviceSpec:
    """The device that a table describes. Raises UserError naming `where` and the key that is missing, unknown or impossible."""
    table = Table(values, where)
    tensor, half, sparse, vector = (_rates(table.table(key)) for key in RATE_KEYS)
    ports = tuple(_port(entry) for entry in table.tables("links"))
    sources = table.table("sources")
    fields: dict[str, Any] = {
        "slug": slug,
        "name": table.text("name"),
        "vendor": table.text("vendor"),
        "architecture": table.text("architecture"),
        "compute_capability": table.text("compute_capability") if table.has("compute_capability") else None,
        "driver_names": table.texts("driver_names"),
        "driver_devices": table.count("driver_devices") if table.has("driver_devices") else 1,
        "memory_bytes": round(table.number("memory_gib") * GIB),
        "visible_memory_bytes": round(table.number("visible_memory_mib") * MIB) if table.has("visible_memory_mib") else None,
        "memory_bandwidth_bytes_s": _whole(table.number("memory_bandwidth_gb_s") * 1e9),
        "tensor": tensor,
        "tensor_half_accumulate": half,
        "tensor_sparse": sparse,
        "vector": vector,
        "multiprocessors": table.count("multiprocessors"),
        "l2_bytes": round(table.number("l2_mib") * MIB) if table.has("l2_mib") else None,
        "boost_clock_hz": _whole(table.number("boost_clock_mhz") * 1e6) if table.has("boost_clock_mhz") else None,
        "tensor_clock_hz": _whole(table.number("tensor_clock_mhz") * 1e6) if table.has("tensor_clock_mhz") else None,
        "power_limit_w": table.number("power_limit_w") if table.has("power_limit_w") else None,
        "ports": ports,
        "source": table.text("source"),
        "sources": tuple((key, sources.text(key)) for key in sources.names()),
        "note": table.text("note") if table.has("note") else None,
    }
    table.finish()
    stray = [key for key in sources.names() if key not in values]
    if stray:
        raise sources.error(f"{stray[0]} is no key of this device")
    if vector.float32 is None:
        raise table.error("vector_tflop_s: float32 is missing")
    try:
        return DeviceSpec(**fields)
    except ValueError as error:
        raise table.error(str(error)) from error


def _rates(table: Table) -> Rates:
    rates = {dtype: _whole(table.number(dtype) * 1e12) for dtype in DTYPES if table.has(dtype)}
    table.finish()
    return Rates(**rates)


def _port(table: Table) -> Port:
    kind = table.text("kind")
    if kind not in link_kinds():
        raise table.error(f"kind {kind!r} is unknown; one of {', '.join(link_kinds())}")
    known = link_kinds()[kind]
    count = table.count("count")
    each = table.number("gb_s") * 1e9 if table.has("gb_s") else known.bandwidth_bytes_s
    if known.family == "pcie":
        topology: Topology = "host"
        joins = table.count("joins") if table.has("joins") else _HOST_JOINS
    else:
        named = table.text("topology")
        if named not in TOPOLOGIES:
            raise table.error(f"topology must be one of {', '.join(TOPOLOGIES)}, not {named!r}")
        topology = named
        joins = table.count("joins")
    table.finish()
    try:
        return Port(kind=kind, count=count, bandwidth_bytes_s=each * count, topology=topology, joins=joins)
    except ValueError as error:
        raise table.error(str(error)) from error


def _whole(value: float) -> float:
    """Without the dust of a decimal fraction times a power of ten: 66.9 * 1e12 is to be 66.9e12."""
    return float(round(value)) if value >= 1 else value
