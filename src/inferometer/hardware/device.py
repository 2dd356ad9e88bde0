"""What a device is, as data: its datasheet in base units (bytes, bytes/s, FLOP/s, hertz, watts)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Dtype = Literal["float32", "tf32", "float16", "bfloat16", "fp8", "int8"]
Topology = Literal["switch", "mesh", "bridge", "host"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)

# Datasheets round; a sparse rate is exactly twice the dense one in hardware, so what lies outside this is a misread figure.
_SPARSE_TOLERANCE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Operations per second by type of the operands (a multiply-add is two). None: the units do not have it, or nobody says."""

    float32: float | None = None
    tf32: float | None = None
    float16: float | None = None
    bfloat16: float | None = None
    fp8: float | None = None
    int8: float | None = None

    def __post_init__(self) -> None:
        for dtype, rate in self.known().items():
            if not rate > 0:
                raise ValueError(f"{dtype}: a rate is positive, not {rate}")

    def of(self, dtype: Dtype) -> float | None:
        """Operations per second, or None."""
        rate: float | None = getattr(self, dtype)
        return rate

    def known(self) -> dict[Dtype, float]:
        """The rates that are not None, in the order of `DTYPES`."""
        rates = {dtype: self.of(dtype) for dtype in DTYPES}
        return {dtype: rate for dtype, rate in rates.items() if rate is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A card's attachment to one kind of link: `count` links (or PCIe lanes), and how many devices they join at that speed.

    `bandwidth_bytes_s` is for one direction, over all the links together.
    """

    kind: str
    count: int
    bandwidth_bytes_s: float
    topology: Topology
    joins: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"links: {self.kind} has count {self.count}; at least 1")
        if not self.bandwidth_bytes_s > 0:
            raise ValueError(f"links: {self.kind} has bandwidth {self.bandwidth_bytes_s}; it must be positive")
        if self.topology not in TOPOLOGIES:
            raise ValueError(f"links: {self.kind} has topology {self.topology!r}; one of {', '.join(TOPOLOGIES)}")
        if self.joins < 2:
            raise ValueError(f"links: {self.kind} joins {self.joins} devices; at least 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device, as its vendor states it. Dense rates only; `tensor_sparse` is kept to check them and is never used as a rate.

    `tensor` accumulates in float32 (int32 for int8), which is what matrix libraries do; `tensor_half_accumulate` is the rate with a
    float16 accumulator where that differs (GeForce cards halve the other). None is unknown: the `cpu` device has no datasheet.
    `memory_bytes` is nominal (GiB of the chips), `visible_memory_bytes` what the driver reports as total, where known.
    `driver_devices` is how many devices the driver shows for one card, each with its share. `source` is the title of the datasheet,
    `sources` has those of the figures that another one states, by their keys in the device's TOML table.
    """

    slug: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str | None
    driver_names: tuple[str, ...] = ()
    driver_devices: int = 1
    memory_bytes: int
    visible_memory_bytes: int | None = None
    memory_bandwidth_bytes_s: float | None
    tensor: Rates = field(default_factory=Rates)
    tensor_half_accumulate: Rates = field(default_factory=Rates)
    tensor_sparse: Rates = field(default_factory=Rates)
    vector: Rates = field(default_factory=Rates)
    multiprocessors: int
    l2_bytes: int | None
    boost_clock_hz: float | None
    tensor_clock_hz: float | None = None
    power_limit_w: float | None
    ports: tuple[Port, ...] = ()
    source: str
    sources: tuple[tuple[str, str], ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        for key in (
            "memory_bytes",
            "visible_memory_bytes",
            "memory_bandwidth_bytes_s",
            "multiprocessors",
            "l2_bytes",
            "boost_clock_hz",
            "tensor_clock_hz",
            "power_limit_w",
            "driver_devices",
        ):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is positive, not {value}")
        if self.visible_memory_bytes is not None and self.visible_memory_bytes > self.memory_bytes:
            raise ValueError("visible_memory_bytes is at most memory_bytes: a driver shows no more than the chips hold")
        if self.l2_bytes is not None and self.l2_bytes >= self.memory_bytes:
            raise ValueError("l2_bytes is less than memory_bytes")
        if self.tensor_clock_hz is not None and self.boost_clock_hz is not None and self.tensor_clock_hz > self.boost_clock_hz:
            raise ValueError("tensor_clock_hz is at most boost_clock_hz")
        for dtype, sparse in self.tensor_sparse.known().items():
            dense = self.tensor_half_accumulate.of(dtype) or self.tensor.of(dtype)
            if dense is None:
                raise ValueError(f"tensor_sparse: {dtype} has no dense rate beside it")
            if abs(sparse / dense - 2) > 2 * _SPARSE_TOLERANCE:
                raise ValueError(f"tensor: {dtype} dense is {dense:.4g} and sparse {sparse:.4g} FLOP/s; sparse is twice dense")
        for dtype, half in self.tensor_half_accumulate.known().items():
            full = self.tensor.of(dtype)
            if full is None or half < full:
                raise ValueError(f"tensor_half_accumulate: {dtype} is no slower than with a float32 accumulator, and that is given too")
        kinds = [port.kind for port in self.ports]
        if len(set(kinds)) != len(kinds):
            raise ValueError(f"links: each kind once, not {', '.join(kinds)}")

    @property
    def usable_memory_bytes(self) -> int:
        """What the driver reports as total where known, else nominal."""
        return self.memory_bytes if self.visible_memory_bytes is None else self.visible_memory_bytes

    def matmul_flop_s(self, dtype: Dtype) -> float | None:
        """Peak dense rate of a matrix product of such operands with a float32 (int32) accumulator; None: it cannot, or nobody says.

        float32 means full precision: never tf32.
        """
        rates = [rate for rate in (self.tensor.of(dtype), self.vector.of(dtype)) if rate is not None]
        return max(rates, default=None)

    def vector_flop_s(self, dtype: Dtype) -> float | None:
        """Peak rate of element-wise work outside the tensor units; types that they lack are computed in float32."""
        return self.vector.of(dtype) or self.vector.float32

    def to_json(self) -> dict[str, Any]:
        """Every field by its name, in base units; rates without those that are None."""
        rates = {key: getattr(self, key).known() for key in ("tensor", "tensor_half_accumulate", "tensor_sparse", "vector")}
        return {**asdict(self), **rates, "sources": dict(self.sources)}
