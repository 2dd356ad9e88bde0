"""What the estimator says of single operations, beside the roofline: the parts that whole estimates are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from inferometer.estimate.bound import bound
from inferometer.estimate.collective import all_reduce_s
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.deviation import Deviation
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import Limits, limits
from inferometer.estimate.measured.operation import Operation, load_operations
from inferometer.estimate.power import power
from inferometer.estimate.stack import find_stack
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import Link, link_between
from inferometer.model.formats import DTYPE_BYTES, Formats
from inferometer.model.ops import Op
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step, decode_equal, forward, prefill
from inferometer.model.work import work

# Whose kernels the measured operations are, or the nearest that is known.
_STACK = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An operation with its expected and its least time, in microseconds."""

    operation: Operation
    expected_us: float
    bound_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series of operations, the error of the expected times and that of the bound."""

    name: str
    timed: tuple[Timed, ...]
    expected: Deviation
    bound: Deviation


def series() -> tuple[Series, ...]:
    """Every series of measured operations, timed."""
    groups: dict[str, list[Timed]] = {}
    for operation in load_operations():
        groups.setdefault(operation.set, []).append(timed(operation))
    return tuple(_series(name, group) for name, group in groups.items())


def timed(operation: Operation) -> Timed:
    """What the operation is expected to take, and the least that it can."""
    known = _limits(operation)
    if operation.kind == "all_reduce":
        (payload,), link = operation.shape, known.link
        assert link is not None, "an all-reduce has a link"
        expected = all_reduce_s(payload, operation.gpus, link, one_shot=operation.captured)
        return Timed(operation=operation, expected_us=expected * 1e6, bound_us=_sent(operation) / link.bandwidth_bytes_s * 1e6)
    where = _deployment(operation, known)
    if operation.kind == "copy":
        (moved,) = operation.shape
        expected = moved / where.machine.memory_bytes_s + where.stack.kernel_s
        return Timed(operation=operation, expected_us=expected * 1e6, bound_us=moved / known.memory_bytes_s * 1e6)
    step, ops = _ops(operation, where.spec)
    cost = where.price(ops, step)
    return Timed(operation=operation, expected_us=sum(op.seconds(cost.clock) for op in cost.ops) * 1e6, bound_us=bound(ops, known).ms * 1e3)


def _series(name: str, group: list[Timed]) -> Series:
    def error(figures: Iterable[float]) -> Deviation:
        return Deviation.of([(each.operation.name, each.operation.us, us) for each, us in zip(group, figures, strict=True)])

    return Series(
        name=name,
        timed=tuple(group),
        expected=error(each.expected_us for each in group),
        bound=error(each.bound_us for each in group),
    )


def _ops(operation: Operation, spec: ModelSpec) -> tuple[Step, tuple[Op, ...]]:
    if operation.kind == "product":
        m, n, k = operation.shape
        item = DTYPE_BYTES[operation.dtype]
        product = Op(
            kind="gemm",
            name="product",
            shape=(m, n, k),
            unit="tensor",
            dtype=operation.dtype,
            flops=2 * m * n * k,
            bytes_read=n * k * item,
            weight_bytes=n * k * item,
            activation_bytes=m * (n + k) * item,
        )
        return forward(1, m), (product,)
    batch, context, *_ = operation.shape
    step = decode_equal(batch, context) if operation.kind == "decode_attention" else prefill(batch, context)
    return step, tuple(op for op in work(spec, step, Formats(dtype=operation.dtype)) if op.kind == "attention")


def _deployment(operation: Operation, known: Limits) -> Deployment:
    device = find_device(operation.device)
    dtype = operation.dtype if operation.dtype != "fp8" else "bfloat16"
    return Deployment(
        spec=_spec(*operation.shape[2:]) if operation.kind.endswith("attention") else _spec(32, 32, 128),
        device=device,
        stack=find_stack(_STACK),
        layout=Layout(devices=1, parallel="tensor"),
        formats=Formats(dtype=dtype),
        limits=known,
        power=power(device),
    )


@cache
def _spec(heads: int, kv_heads: int, head_size: int) -> ModelSpec:
    """One layer with such heads."""
    known = preset("llama-3.1-8b")
    assert known is not None, "the preset is there"
    return replace(known.spec(), layers=1, heads=heads, kv_heads=kv_heads, head_size=head_size)


def _limits(operation: Operation) -> Limits:
    return limits(find_device(operation.device), link=_link(operation))


def _link(operation: Operation) -> Link | None:
    return link_between(find_device(operation.device), operation.gpus, operation.link) if operation.gpus > 1 else None


def _sent(operation: Operation) -> float:
    """What each device of a ring must send of an all-reduce's payload."""
    (payload,) = operation.shape
    return 2 * (operation.gpus - 1) / operation.gpus * payload
