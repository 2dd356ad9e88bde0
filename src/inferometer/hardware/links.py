"""The links between devices and to the host: what each carries, and which of them two given cards can use."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from inferometer.errors import UserError
from inferometer.hardware.table import Table

if TYPE_CHECKING:
    from inferometer.hardware.device import DeviceSpec, Port, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKind:
    """One kind of link. `bandwidth_bytes_s` is one link (one PCIe lane) in one direction; `latency_s` a hop, None where no source says."""

    kind: str
    name: str
    family: str
    bandwidth_bytes_s: float
    latency_s: float | None
    source: str
    latency_source: str | None

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins devices of one kind: bytes/s in one direction for one device over all its links, and seconds a hop (None: unknown).

    `joins` is how many devices are joined at that speed: 2 by a bridge, a baseboard's worth by switches. `copy_bytes_s`, `word_s`: what a
    copy to another device carries, and what a sum of one word over two takes; None where they were not measured. `sums`: as measured,
    (devices, ((bytes that each has, seconds), ...)), both rising.
    """

    kind: str
    name: str
    bandwidth_bytes_s: float
    latency_s: float | None
    topology: Topology
    joins: int
    copy_bytes_s: float | None = None
    word_s: float | None = None
    sums: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()

    def sums_over(self, devices: int) -> tuple[tuple[int, float], ...]:
        """(bytes, seconds) of sums over so many devices; empty where they were not measured."""
        return next((times for count, times in self.sums if count == devices), ())


@cache
def link_kinds() -> Mapping[str, LinkKind]:
    """All kinds of links by name (`nvlink3`, `pcie4`, ...), in the order of the file."""
    text = files("inferometer.hardware").joinpath("links.toml").read_text("utf-8")
    kinds = {}
    for kind, values in tomllib.loads(text).items():
        table = Table(values, f"links.toml: {kind}")
        kinds[kind] = LinkKind(
            kind=kind,
            name=table.text("name"),
            family=table.text("family"),
            bandwidth_bytes_s=table.number("gb_s") * 1e9,
            latency_s=table.number("latency_us") * 1e-6 if table.has("latency_us") else None,
            source=table.text("source"),
            latency_source=table.text("latency_source") if table.has("latency_source") else None,
        )
        table.finish()
    return kinds


def link_names() -> tuple[str, ...]:
    """What `--link` accepts: families, `nvswitch`, and the kinds of one generation."""
    families = dict.fromkeys(kind.family for kind in link_kinds().values())
    return (*families, "nvswitch", *link_kinds())


def link_between(device: DeviceSpec, gpus: int = 2, name: str | None = None) -> Link:
    """The link that `gpus` such devices talk over; `name` as in `--link`, None: the fastest that joins them all.

    A slower PCIe generation than the card's own is what an older slot gives. Raises UserError naming `--link` and what the card has.
    """
    if name is None:
        candidates = [port for port in device.ports if port.joins >= gpus]
        if not candidates:
            raise UserError(f"--gpus {gpus}: {device.slug} has no link that joins so many; name one with --link")
        return _link(max(candidates, key=lambda port: port.bandwidth_bytes_s))
    if name not in link_names():
        raise UserError(f"--link {name}: no such link; one of {', '.join(link_names())}")
    port = _port(device, name)
    if port is None:
        have = ", ".join(port.kind for port in device.ports)
        raise UserError(f"--link {name}: {device.slug} has no such link; {f'it has {have}' if have else 'leave it out, as it has none'}")
    if port.joins < gpus:
        hosts = [other.kind for other in device.ports if other.joins >= gpus]
        remedy = f"; for {gpus} use --link {hosts[0]}" if hosts else ""
        raise UserError(f"--link {name}: {port.topology} joins {port.joins} of {device.slug}, not {gpus}{remedy}")
    kind = link_kinds().get(name)
    if kind is not None and kind.kind != port.kind:
        return Link(
            kind=kind.kind,
            name=kind.name,
            bandwidth_bytes_s=kind.bandwidth_bytes_s * port.count,
            latency_s=kind.latency_s,
            topology=port.topology,
            joins=port.joins,
        )
    return _link(port)


def host_link(device: DeviceSpec) -> Link | None:
    """The link between the device and its host; None for a device that is the host."""
    for port in device.ports:
        if port.topology == "host":
            return _link(port)
    return None


def _port(device: DeviceSpec, name: str) -> Port | None:
    kinds = link_kinds()
    if name == "nvswitch":
        # A mesh of NVLinks is what the same card has on a baseboard without switches.
        named = [port for port in device.ports if kinds[port.kind].family == "nvlink" and port.topology in ("switch", "mesh")]
    elif name in kinds and kinds[name].family == "pcie":
        wanted = kinds[name].bandwidth_bytes_s
        named = [port for port in device.ports if kinds[port.kind].family == "pcie" and kinds[port.kind].bandwidth_bytes_s >= wanted]
    else:
        named = [port for port in device.ports if name in (port.kind, kinds[port.kind].family)]
    return named[0] if named else None


def _link(port: Port) -> Link:
    kind = link_kinds()[port.kind]
    return Link(
        kind=port.kind,
        name=kind.name,
        bandwidth_bytes_s=port.bandwidth_bytes_s,
        latency_s=kind.latency_s,
        topology=port.topology,
        joins=port.joins,
    )
