"""What the estimator says of a measured row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from inferometer.errors import UserError
from inferometer.estimate.bound import op_bound
from inferometer.estimate.cost import Binds, OpTime
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.groups import GroupRun
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.measured import MeasuredRow, load_calibration
from inferometer.estimate.memory import memory
from inferometer.estimate.power import power
from inferometer.estimate.run import decode_cost, forward_step, generate, prefill_step, serve
from inferometer.estimate.stack import find_stack
from inferometer.estimate.workload import Workload
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import link_between
from inferometer.model.formats import Formats
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step, decode_equal

# Constants of the device's power model, each a factor on what the device has.
# A constant of memory: the share of the generated tokens that a diagonal run's cache was never filled with.
MEMORY_CONSTANTS = ("unfilled",)
# Document 000's diagonal runs were projected from their first steps.
_UNFILLED = 0.85
# Rows whose memory is what the driver shows, the process's own included.
_DRIVERS = "fastertransformer-memory"
# ML.ENERGY's requests draw their tokens with top-p.
_SORTS = "mlenergy"
POWER_CONSTANTS = ("static_power", "tensor_power", "memory_power")


def deployment_of(row: MeasuredRow, constants: Mapping[str, float]) -> Deployment:
    """The row's deployment. Raises KeyError for a constant that is none."""
    device, spec = find_device(row.device), _spec(row.model)
    factors = {name: value for name, value in constants.items() if name in POWER_CONSTANTS}
    others = {name: value for name, value in constants.items() if name not in (*factors, *MEMORY_CONSTANTS)}
    stack = find_stack(row.stack).with_constants(others)
    drawn = power(device)
    if drawn is not None and factors:
        drawn = drawn.scaled(
            static=factors.get("static_power", 1.0), tensor=factors.get("tensor_power", 1.0), memory=factors.get("memory_power", 1.0)
        )
    link = link_between(device, row.gpus, row.link) if row.gpus > 1 else None
    return Deployment(
        spec=spec,
        device=device,
        stack=stack,
        layout=Layout(devices=row.gpus, parallel="tensor" if row.parallel == "none" else row.parallel),
        formats=Formats(dtype=row.dtype, weights=None if row.quantize is None else stack.weights(row.quantize, row.dtype)),
        limits=limits(device, _calibration(row.calibration), link),
        power=drawn,
        sorts=row.regime.startswith(_SORTS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One op's part of a row's time, all its runs together. bytes: compulsory traffic."""

    name: str
    kind: str
    count: int
    ms: float
    bound_ms: float
    flops: int
    bytes: int
    binds: Binds


def op_times(row: MeasuredRow, constants: Mapping[str, float] | None = None) -> tuple[Part, ...]:
    """The parts of the row's step; of a run of several steps, those of its prompts and then those of all its decode steps."""
    where = deployment_of(row, constants or {})
    batch, length, generated = row.group_size or row.batch, row.prompt_tokens, row.new_tokens
    steps: list[tuple[Step, int]] = []
    if row.mode == "forward":
        steps.append((forward_step(where, batch, length, loss=row.loss), 1))
    if row.mode in ("prefill", "generate", "groups"):
        steps.append((prefill_step(where, batch, length), row.groups or 1))
    if row.mode in ("decode", "generate", "groups", "serve"):
        times = 1 if row.mode in ("decode", "serve") else generated - 1
        steps.append((decode_equal(batch, row.mean_context), times * (row.groups or 1)))
    return tuple(
        _part(each, where, cost.clock, count) for step, count in steps if count for cost in [where.cost(step)] for each in cost.ops
    )


def _part(each: OpTime, where: Deployment, clock: float, count: int) -> Part:
    op = each.op
    return Part(
        name=op.name,
        kind=op.kind,
        count=op.count * count,
        ms=each.seconds(clock) * 1e3 * count,
        bound_ms=op_bound(op, where.limits)[1] * op.count * count * 1e3,
        flops=op.flops * op.count * count,
        bytes=op.bytes_moved * op.count * count,
        binds=each.binds,
    )


def predict(row: MeasuredRow, constants: Mapping[str, float] | None = None) -> float | None:
    """The row's quantity, in its unit. constants replace the stack's and the power model's; None where the quantity is not modelled."""
    where = deployment_of(row, constants or {})
    batch, length, generated = row.batch, row.prompt_tokens, row.new_tokens
    if row.quantity == "peak_gib":
        return _peak_gib(row, where, constants or {})
    if row.mode == "forward":
        return where.cost(forward_step(where, batch, length, loss=row.loss)).ms
    if row.mode == "prefill":
        return where.cost(prefill_step(where, batch, length)).ms
    if row.mode == "decode":
        return decode_cost(where, batch, length, generated + 1).ms
    if row.mode == "generate":
        return generate(where, batch, length, generated).seconds * 1e3
    if row.mode == "groups":
        assert row.admission is not None, "a row of groups has an order"
        assert row.groups is not None, "and their number"
        assert row.group_size is not None, "and size"
        run = GroupRun(deployment=where, order=row.admission, groups=row.groups, size=row.group_size, length=length, generated=generated)
        return run.total().seconds * 1e3
    steady = serve(where, batch, length, generated)
    return steady.j_per_token if row.quantity == "j_per_token" else steady.watts


def _peak_gib(row: MeasuredRow, where: Deployment, constants: Mapping[str, float]) -> float:
    work = Workload(
        batch=row.batch,
        length=row.prompt_tokens,
        generated=0 if row.mode == "forward" else max(1, row.new_tokens),
        loss=row.loss,
        group=row.group_size,
        unfilled=constants.get("unfilled", _UNFILLED) if row.admission == "diagonal" and where.stack.groups_apart else 0.0,
    )
    found = memory(where.spec, where.local, where.stack, work, cpu=False, layout=where.layout)
    shown = found.device_bytes if row.regime == _DRIVERS else found.peak_bytes
    return shown / (1 << 30)


@cache
def _calibration(name: str | None) -> Calibration | None:
    return None if name is None else load_calibration(name)


@lru_cache(maxsize=64)
def _spec(model: str) -> ModelSpec:
    found = preset(model)
    if found is None:
        raise UserError(f"{model} is no preset, and measured rows are of presets")
    return found.spec()
