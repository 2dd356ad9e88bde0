"""The rates that a device can reach at most, complete enough to price every op, and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from inferometer.errors import UserError
from inferometer.estimate.layout import Layout
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import CPU
from inferometer.hardware.ceilings import ceilings
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.links import Link, link_between

LimitsBasis = Literal["calibrated", "datasheet", "assumed"]

# A CPU has no datasheet that names it. Until it is calibrated, each of its cores is taken for a current server's: a tenth of a
# socket's DDR5 channels, and two fused multiply-adds a cycle at 3 GHz over vectors of 8 (AVX2) or 16 (AVX-512) float32.
_CORE_BYTES_S = 10e9
_SOCKET_BYTES_S = 300e9
_CORE_CLOCK_HZ = 3e9
_FMAS_A_CYCLE = 2
# Tile units (AMX) multiply 16-bit matrices some eight times as fast as vector units do.
_TILE_SPEEDUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes/s, FLOP/s by type of the operands, and the link between shards (None for one device).

    library, own: FLOP/s of matrix products by the matrix library and by this program's own kernels, where those were measured.
    `basis`: "calibrated" where measured on this device, "datasheet", or "assumed" for a CPU that was not measured.
    `launch_s` is what the host spends to start one operation, None unless measured.
    """

    memory_bytes_s: float
    matmul: Mapping[str, float]
    vector: Mapping[str, float]
    link: Link | None
    launch_s: float | None
    basis: LimitsBasis
    library: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)

    def matmul_flop_s(self, dtype: str) -> float:
        """Of matrix products. A type that the device lacks is widened on the way: 8 bits to 16, those to float32."""
        return self.matmul[self._multiplied_as(dtype)]

    def matmul_flop_s_of(self, dtype: str, *, own_kernels: bool) -> float:
        """Of matrix products by this program's own kernels, or by the matrix library."""
        name = self._multiplied_as(dtype)
        return (self.own.get(name) if own_kernels else None) or self.library.get(name) or self.matmul[name]

    def _multiplied_as(self, dtype: str) -> str:
        wider = ("float16", "bfloat16") if dtype in ("int8", "fp8") else ()
        return next((name for name in (dtype, *wider) if name in self.matmul), "float32")

    def vector_flop_s(self, dtype: str) -> float:
        """Of element-wise work."""
        return self.vector.get(dtype) or self.vector["float32"]

    def part(self, ranks: int) -> Limits:
        """What each of so many ranks has that share the device, as those on a CPU do: an equal part of its cores and its memory's rate."""
        matmul, vector, library, own = (
            {dtype: rate / ranks for dtype, rate in each.items()} for each in (self.matmul, self.vector, self.library, self.own)
        )
        return replace(self, memory_bytes_s=self.memory_bytes_s / ranks, matmul=matmul, vector=vector, library=library, own=own)


def limits(device: DeviceSpec, calibration: Calibration | None = None, link: Link | None = None, *, sharing: int = 1) -> Limits:
    """The limits of `device`, measured if it is calibrated, else from its datasheet.

    sharing: ranks that have the device together, as on a CPU, and of which one is meant; `link` is then theirs, of `joining`. Raises
    UserError for a device described without the rates that a bound needs.
    """
    whole = _limits(device, calibration, link)
    return whole if sharing == 1 else whole.part(sharing)


def joining(device: DeviceSpec, calibration: Calibration | None, layout: Layout, name: str | None = None) -> Link | None:
    """What the devices of a layout talk over, None for one: the link that `name` says, or the fastest that joins them; ranks on a CPU its
    memory.

    Raises UserError where no link joins so many, and on a CPU for ranks that share a model in another way than by tensor, or whose sums
    were not measured.
    """
    if layout.devices == 1:
        return None
    if device.slug != CPU:
        return link_between(device, layout.devices, name)
    if layout.parallel != "tensor":
        raise UserError(f"--parallel {layout.parallel}: ranks on a CPU cut every layer; leave it out, or name a GPU with --device")
    if name is not None:
        raise UserError(f"--link {name}: ranks on a CPU have none; leave it out")
    found = rank_link(calibration, layout.devices)
    if found is None:
        known = sorted(calibration.sums_s) if calibration is not None and calibration.slug == CPU else []
        remedy = "measure what its ranks add up with `inferometer devices --calibrate --device cpu`"
        if known:
            remedy = f"use one from {known[0]} to {known[-1]}, which were measured"
        raise UserError(f"--tensor-parallel {layout.devices}: cpu is one device, and so many ranks on it are unknown; {remedy}")
    return found


def rank_link(calibration: Calibration | None, ranks: int) -> Link | None:
    """What so many ranks on this machine's CPU talk over: its memory, by the sums that were measured; None where none were.

    Of a number of ranks between two that were measured the sums are in its proportion, at the sizes that both have.
    """
    measured = {} if calibration is None or calibration.slug != CPU else calibration.sums_s
    if not measured or not min(measured) <= ranks <= max(measured):
        return None
    assert calibration is not None, "it has sums"
    fewer, more = max(count for count in measured if count <= ranks), min(count for count in measured if count >= ranks)
    share = 0.0 if more == fewer else (ranks - fewer) / (more - fewer)
    sizes = sorted(set(measured[fewer]) & set(measured[more]))
    if not sizes:
        return None
    times = tuple((size, measured[fewer][size] + share * (measured[more][size] - measured[fewer][size])) for size in sizes)
    return Link(
        kind="memory",
        name="the host's memory, through gloo",
        bandwidth_bytes_s=calibration.bandwidth_bytes_s,
        latency_s=None,
        topology="host",
        joins=max(measured),
        sums=((ranks, times),),
    )


def _limits(device: DeviceSpec, calibration: Calibration | None, link: Link | None) -> Limits:
    known = ceilings(device, calibration)
    matmul: dict[str, float] = {str(dtype): rate for dtype, rate in known.matmul_flop_s.items()}
    vector: dict[str, float] = {str(dtype): rate for dtype, rate in known.vector_flop_s.items()}
    bandwidth, basis = known.memory_bandwidth_bytes_s, known.basis
    if bandwidth is None or not matmul:
        if device.slug != CPU:
            raise UserError(f"--device {device.slug}: its description lacks memory_bandwidth_gb_s or vector_tflop_s; add them to the file")
        return _assumed(device, link)
    matmul.setdefault("float32", min(matmul.values()))
    vector.setdefault("float32", matmul["float32"])
    return Limits(
        memory_bytes_s=bandwidth,
        matmul=matmul,
        vector=vector,
        link=_measured(link, device, calibration),
        launch_s=known.launch_s,
        basis="datasheet" if basis == "datasheet" else "calibrated",
        library={str(dtype): rate for dtype, rate in known.library_flop_s.items()},
        own={str(dtype): rate for dtype, rate in known.own_flop_s.items()},
    )


def _measured(link: Link | None, device: DeviceSpec, calibration: Calibration | None) -> Link | None:
    """The link with what was measured over it: over the fastest that two such devices have, which is what they use."""
    if link is None or calibration is None or device.slug == CPU or link.kind != link_between(device).kind:
        return link
    sums = tuple((devices, tuple(sorted(times.items()))) for devices, times in sorted(calibration.sums_s.items()))
    return replace(link, copy_bytes_s=calibration.peer_bytes_s, word_s=calibration.peer_sum_s, sums=sums)


def _assumed(device: DeviceSpec, link: Link | None) -> Limits:
    cores = device.multiprocessors
    lanes = 16 if "avx512f" in device.architecture else 8 if "avx2" in device.architecture else 4
    single = cores * _CORE_CLOCK_HZ * _FMAS_A_CYCLE * 2 * lanes
    matmul = {"float32": single}
    if "amx_bf16" in device.architecture:
        matmul["bfloat16"] = _TILE_SPEEDUP * single
    elif "bf16" in device.architecture:
        matmul["bfloat16"] = 2 * single
    return Limits(
        memory_bytes_s=min(cores * _CORE_BYTES_S, _SOCKET_BYTES_S),
        matmul=matmul,
        vector={"float32": single},
        link=link,
        launch_s=None,
        basis="assumed",
    )
