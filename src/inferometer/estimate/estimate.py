"""What a model will cost on a device: times, memory and energy, each beside its bound, with an interval and the basis of it all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferometer.estimate.bound import Bound, mean_bound
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.fit import Fit, fit
from inferometer.estimate.groups import HOST_SHARE, GroupRun
from inferometer.estimate.interval import MEMORY_FACTORS, Factors, energy_factors, time_factors
from inferometer.estimate.limits import Limits, limits
from inferometer.estimate.memory import Memory, is_cpu, memory
from inferometer.estimate.power import power
from inferometer.estimate.price import Cost, OpTime, mean_cost
from inferometer.estimate.request import Request, resolve
from inferometer.estimate.run import Total, forward_step, prefill_step
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.links import host_link
from inferometer.model.description import ModelDescription
from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Share, Step, decode_equal

Phase = Literal["forward_ms", "prefill_ms", "decode_token_ms"]
PHASES: tuple[Phase, ...] = ("forward_ms", "prefill_ms", "decode_token_ms")
MIXED = "mixed_step_ms"

ENERGY_BASIS = "static power + tensor units, memory and links at their use, under the power limit and the clock that it leaves"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEstimate:
    """One phase's expected cost, and its bound."""

    cost: Cost
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate. Times are milliseconds, None for a phase that the request does not have.

    total: the run as a whole: prompts and all generated tokens, or the groups in their order; None for a forward alone.
    mixed: a decode step with prompt tokens beside it, where that was asked for.

    prefill_ms: one pass over the prompts and the first token of each. decode_token_ms: the mean of the steps after it, one token a
    sequence each. forward_ms: one pass with logits at all positions. peak_memory_bytes: tensors on one device, as its allocator
    counts them. j_per_token: joules of all devices per generated token (per prompt token for a forward), None without a power limit.
    interval: (low, high) by figure, within which a measurement is expected. basis: where the limits are from and what
    the rest assumes.
    """

    request: Request
    phases: Mapping[Phase, PhaseEstimate]
    memory: Memory
    fit: Fit
    total: Total | None
    mixed: PhaseEstimate | None
    limits: Limits

    @property
    def forward_ms(self) -> float | None:
        """One forward, None for a request that generates."""
        return self._time("forward_ms")

    @property
    def prefill_ms(self) -> float | None:
        """The prompts and the first tokens, None for a forward alone."""
        return self._time("prefill_ms")

    @property
    def decode_token_ms(self) -> float | None:
        """One later token of every sequence, None where there is none."""
        return self._time("decode_token_ms")

    @property
    def times(self) -> Factors:
        """What measured over predicted times are expected to lie between. The rows that tell are read when this is first asked for."""
        return time_factors(self.request, self.limits.basis)

    @property
    def energies(self) -> Factors:
        """The same for joules."""
        return energy_factors(self.request, self.limits.basis)

    @property
    def total_ms(self) -> float | None:
        """The whole run, None for a forward alone."""
        return None if self.total is None else self.total.seconds * 1e3

    @property
    def j_per_token(self) -> float | None:
        """Joules of all devices a generated token (a prompt token of a forward), None without a stated power limit."""
        if self.total is not None:
            return self.total.j_per_token
        asked, forward = self.request.workload, self.phases["forward_ms"].cost.joules(self.request.layout.devices)
        return None if forward is None else forward / (asked.batch * asked.length)

    @property
    def largest_context(self) -> int:
        """The longest prompts of this batch that fit, with the tokens that follow."""
        return self.fit.largest_context

    @property
    def verify(self) -> str:
        """The command that would measure it."""
        asked = self.request
        filled = asked.stack.verify.format(
            model=asked.spec.name,
            batch=asked.workload.batch,
            prompt=asked.workload.length,
            new=asked.workload.generated,
            dtype=asked.formats.dtype,
            gpus=asked.layout.devices,
        )
        if asked.workload.generated:
            return filled
        return filled.replace(" --decode-length 0", " --forward-only" + " --loss" * asked.workload.loss)

    @property
    def peak_memory_bytes(self) -> int:
        """Tensors at their peak on one device."""
        return self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the devices have the memory."""
        return self.fit.fits

    @property
    def short_by_bytes(self) -> int | None:
        """What one device lacks, None if it fits."""
        return self.fit.short_by_bytes

    @property
    def remedy(self) -> str | None:
        """Flags that would make it fit; None if it fits, or if no setting would."""
        return self.fit.remedy

    @property
    def largest_batch(self) -> int:
        """The most sequences of these lengths that fit."""
        return self.fit.largest_batch

    @property
    def basis(self) -> str:
        """Where the limits are from, what stands between them and the times, and what the interval is from."""
        return f"{self.limits.basis} limits, shapes of the ops, {self.request.stack.name}'s constants; interval: {self.times.source}"

    @property
    def bound(self) -> dict[str, Any]:
        """The fields of a record's `bound`: least times, what binds each, and the basis."""
        times: dict[str, Any] = {phase: self.phases[phase].bound.ms if phase in self.phases else None for phase in PHASES}
        binds = {phase: each.bound.binds for phase, each in self.phases.items()}
        return {**times, "binds": binds, "basis": self.limits.basis}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """(low, high) by the figure's name. No time is expected below its bound."""
        low, high = self.times.low, self.times.high
        found: dict[str, tuple[float, float]] = {}
        for name, each in self.phases.items():
            found[name] = (max(low * each.cost.ms, min(each.bound.ms, each.cost.ms)), high * each.cost.ms)
        if self.total_ms is not None:
            found["total_ms"] = (low * self.total_ms, high * self.total_ms)
        found["peak_memory_bytes"] = (MEMORY_FACTORS[0] * self.peak_memory_bytes, MEMORY_FACTORS[1] * self.peak_memory_bytes)
        if self.j_per_token is not None:
            found["j_per_token"] = (self.energies.low * self.j_per_token, self.energies.high * self.j_per_token)
        return found

    @property
    def predicted(self) -> dict[str, Any]:
        """The fields of a record's `predicted`."""
        return {
            **{phase: self._time(phase) for phase in PHASES},
            "peak_memory_bytes": self.peak_memory_bytes,
            "j_per_token": self.j_per_token,
            "basis": self.basis,
            "interval": self.interval,
        }

    @property
    def breakdown(self) -> dict[str, Any]:
        """Where memory, energy and time go: bytes by use, joules by phase, milliseconds by kind of op and by op, expected and bound."""
        held, devices = self.memory, self.request.layout.devices
        parts: dict[str, Any] = {
            "memory_bytes": {
                "weights": held.weights,
                "rounding": held.rounding,
                "workspace": held.workspace,
                "kv": held.kv,
                "activations": held.activations,
                "logits": held.logits,
                "context": held.context,
                "communication": held.communication,
                "device": held.device_bytes,
                "available": self.request.device.usable_memory_bytes,
            },
            "energy": self._energy(devices),
        }
        for phase, each in self.phases.items():
            parts[phase] = {
                "expected": dict(each.cost.kinds),
                "host": each.cost.host_ms,
                "bound": dict(each.bound.kinds),
                "bound_shares": dict(each.bound.shares),
                "ops": [_op(part, each.cost.clock) for part in each.cost.ops],
            }
        return parts

    def _energy(self, devices: int) -> dict[str, Any]:
        if self.j_per_token is None:
            return {"basis": None}
        asked, found = self.request, {}
        for phase, each in self.phases.items():
            tokens = asked.workload.batch * (1 if phase == "decode_token_ms" else asked.workload.length)
            joules = each.cost.joules(devices) or 0.0
            found[phase.removesuffix("_ms")] = {
                "j": joules,
                "j_per_token": joules / tokens,
                "watts": each.cost.watts,
                "clock": each.cost.clock,
            }
        return {**found, "devices": devices, "basis": ENERGY_BASIS}

    def to_dict(self) -> dict[str, Any]:
        """The fields of a record's `predicted` at top level, its `bound`, the breakdown, the fit, and what was asked. Plain values."""
        asked = self.request
        return {
            "model": asked.spec.name,
            "device": asked.device.slug,
            "gpus": asked.gpus,
            "link": None if asked.link is None else asked.link.kind,
            "stack": asked.stack.name,
            "dtype": asked.formats.dtype,
            "quantize": asked.quantize,
            "kv_dtype": asked.formats.kv_dtype,
            "parallel": asked.layout.parallel,
            "tensor_parallel": asked.formats.shards,
            "admission": asked.order or "continuous",
            "group_size": asked.workload.group,
            "offload": f"weights:{asked.workload.streamed:g}" if asked.workload.streamed else None,
            "batch_size": asked.workload.batch,
            "sequence_length": asked.workload.length,
            "decode_length": asked.workload.generated or None,
            "forward_only": not asked.workload.generated,
            "loss": asked.workload.loss,
            **self.predicted,
            "total_ms": self.total_ms,
            **({} if self.mixed is None else {MIXED: self.mixed.cost.ms}),
            "interval": {name: list(ends) for name, ends in self.interval.items()},
            "bound": self.bound,
            "breakdown": self.breakdown,
            "fits": self.fits,
            "short_by_bytes": self.short_by_bytes,
            "remedy": self.remedy,
            "largest_batch": self.largest_batch,
            "largest_context": self.largest_context,
            "verify": self.verify,
        }

    def _time(self, phase: Phase) -> float | None:
        return self.phases[phase].cost.ms if phase in self.phases else None


def estimate(
    model: str | ModelSpec | ModelDescription | None,
    device: str | DeviceSpec,
    *,
    batch_size: int,
    sequence_length: int,
    decode_length: int | None = None,
    dtype: str = "float16",
    quantize: str | None = None,
    kv_dtype: str = "auto",
    tensor_parallel: int = 1,
    stack: str = "native",
    forward_only: bool = False,
    loss: bool = False,
    gpus: int | None = None,
    link: str | None = None,
    parallel: str = "tensor",
    admission: str | None = None,
    group_size: int | None = None,
    offload: str | None = None,
    mixed_tokens: int | None = None,
    calibration: Calibration | Literal["auto"] | None = "auto",
) -> Estimate:
    """What `model` will cost on `device`, described by name or as data; no weights and no such device are needed.

    A batch of `batch_size` prompts of `sequence_length` tokens, each continued by `decode_length`; with `forward_only` (always, for
    an encoder) one pass with logits at all positions, and with `loss` their cross-entropy. `calibration` "auto" is what was measured
    on this machine, if it has the device. `parallel` says how `tensor_parallel` (or, with another way, `gpus`) devices share the model.
    `admission` zigzag, diagonal or row runs the batch in groups of `group_size`; `offload` "weights:FRACTION" brings that share of the
    layers' weights over the host link in every sweep. `mixed_tokens` also prices a decode step beside so many prompt tokens.
    A model that does not fit is priced all the same; `fits`, `short_by_bytes` and `remedy` say so.
    Raises UserError, one line that names the option and the remedy, for a name that is unknown and a request that contradicts itself.
    """
    request = resolve(
        model,
        device,
        batch_size=batch_size,
        sequence_length=sequence_length,
        decode_length=decode_length,
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        stack=stack,
        forward_only=forward_only,
        loss=loss,
        gpus=gpus,
        link=link,
        parallel=parallel,
        admission=admission,
        group_size=group_size,
        offload=offload,
        mixed_tokens=mixed_tokens,
        calibration=calibration,
    )
    where = deployment(request)
    phases = {phase: _phase(where, steps) for phase, steps in _steps(request, where).items()}
    needed = memory(request.spec, request.formats, request.stack, request.workload, cpu=is_cpu(request.device), layout=request.layout)
    return Estimate(
        request=request,
        phases=phases,
        memory=needed,
        fit=fit(request, needed),
        total=_total(request, where, phases),
        mixed=None if request.mixed_tokens is None else _phase(where, (_mixed(request, request.mixed_tokens),)),
        limits=where.limits,
    )


def deployment(request: Request) -> Deployment:
    """What the request runs on, for what prices steps of its own."""
    return Deployment(
        spec=request.spec,
        device=request.device,
        stack=request.stack,
        layout=request.layout,
        formats=request.formats,
        limits=limits(request.device, request.calibration, request.link),
        power=power(request.device),
    )


def _steps(request: Request, where: Deployment) -> dict[Phase, tuple[Step, ...]]:
    """The steps whose mean is each phase's time. Groups pass through a layer one group at a time."""
    asked = request.workload
    if not asked.generated:
        return {"forward_ms": (forward_step(where, asked.batch, asked.length, loss=asked.loss),)}
    batch = asked.together if request.order is not None and request.stack.groups_apart else asked.batch
    steps: dict[Phase, tuple[Step, ...]] = {"prefill_ms": (prefill_step(where, batch, asked.length),)}
    if asked.generated > 1:
        # Costs grow evenly with the context, so the middle of the run (two steps, if it has no middle one) stands for all.
        twice = 2 * asked.length + asked.generated - 2
        middle = dict.fromkeys((twice // 2, -(-twice // 2)))
        steps["decode_token_ms"] = tuple(decode_equal(batch, context) for context in middle)
    return steps


def _mixed(request: Request, tokens: int) -> Step:
    asked = request.workload
    return Step(shares=(Share(tokens), Share(1, asked.length + asked.generated // 2, asked.batch)))


def _phase(where: Deployment, steps: tuple[Step, ...]) -> PhaseEstimate:
    return PhaseEstimate(cost=mean_cost([where.cost(step) for step in steps]), bound=mean_bound(tuple(where.bound(step) for step in steps)))


def _total(request: Request, where: Deployment, phases: Mapping[Phase, PhaseEstimate]) -> Total | None:
    asked = request.workload
    if not asked.generated:
        return None
    streamed = request.workload.streamed * request.spec.layers * layer_weight_bytes(request.spec, request.formats)
    host = host_link(request.device) if request.workload.streamed else None
    if request.order is not None:
        assert asked.group is not None, "groups have a size"
        return GroupRun(
            deployment=where,
            order=request.order,
            groups=-(-asked.batch // asked.group),
            size=asked.together,
            length=asked.length,
            generated=asked.generated,
            streamed_bytes=streamed,
            host_bytes_s=None if host is None else host.bandwidth_bytes_s * HOST_SHARE,
        ).total()
    coming = 0.0 if host is None else streamed / (host.bandwidth_bytes_s * HOST_SHARE)
    seconds, joules = where.stack.request_s, 0.0
    for phase, each in phases.items():
        count = asked.generated - 1 if phase == "decode_token_ms" else 1
        seconds += count * max(each.cost.ms / 1e3, coming)
        drawn = each.cost.joules(where.devices)
        if drawn is None:
            joules = math.nan
        else:
            joules += count * drawn
    return Total(seconds, None if math.isnan(joules) else joules, asked.batch * asked.generated)


def _op(part: OpTime, clock: float) -> dict[str, Any]:
    return {"name": part.op.name, "kind": part.op.kind, "count": part.op.count, "ms": part.seconds(clock) * 1e3, "binds": part.binds}
