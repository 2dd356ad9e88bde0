"""What a model will cost on a device: times, memory and energy, each beside its bound, with an interval and the basis of it all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferometer.estimate.bound import Bound, bound, mean_bound
from inferometer.estimate.efficiency import efficiency
from inferometer.estimate.energy import BASIS, step_joules
from inferometer.estimate.fit import Fit, fit
from inferometer.estimate.limits import Limits, LimitsBasis, limits
from inferometer.estimate.memory import Memory, is_cpu, memory
from inferometer.estimate.price import Cost, Pricing
from inferometer.estimate.request import Request, resolve
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.device import DeviceSpec
from inferometer.model.description import ModelDescription
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step, decode_equal, encode, forward, prefill
from inferometer.model.work import work

Phase = Literal["forward_ms", "prefill_ms", "decode_token_ms"]
PHASES: tuple[Phase, ...] = ("forward_ms", "prefill_ms", "decode_token_ms")

# Factors around a time that measurements are expected to stay within. They are judged, not fitted: on measured limits what is left is
# the stack's overhead; a datasheet adds what the card's power limit and the shape of its products do; an assumed CPU may be another.
_TIME_FACTORS: Mapping[LimitsBasis, tuple[float, float]] = {"calibrated": (0.75, 1.4), "datasheet": (0.65, 1.6), "assumed": (0.3, 4.0)}
# Allocators round and keep fragments; tensors are counted one by one.
_MEMORY_FACTORS = (0.97, 1.06)
_POWER_FACTORS = (0.7, 1.35)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEstimate:
    """One phase's expected cost, and its bound."""

    cost: Cost
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate. Times are milliseconds, None for a phase that the request does not have.

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
    j_per_token: float | None
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
        """Where the limits are from, and what stands between them and the times."""
        return f"{self.limits.basis} limits x efficiency by kind of op + launches of {self.request.stack.name}"

    @property
    def bound(self) -> dict[str, Any]:
        """The fields of a record's `bound`: least times, what binds each, and the basis."""
        times: dict[str, Any] = {phase: self.phases[phase].bound.ms if phase in self.phases else None for phase in PHASES}
        binds = {phase: each.bound.binds for phase, each in self.phases.items()}
        return {**times, "binds": binds, "basis": self.limits.basis}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """(low, high) by the figure's name. No time is expected below its bound."""
        low, high = _TIME_FACTORS[self.limits.basis]
        found: dict[str, tuple[float, float]] = {}
        for name, each in self.phases.items():
            found[name] = (max(low * each.cost.ms, min(each.bound.ms, each.cost.ms)), high * each.cost.ms)
        found["peak_memory_bytes"] = (_MEMORY_FACTORS[0] * self.peak_memory_bytes, _MEMORY_FACTORS[1] * self.peak_memory_bytes)
        if self.j_per_token is not None:
            found["j_per_token"] = (low * _POWER_FACTORS[0] * self.j_per_token, high * _POWER_FACTORS[1] * self.j_per_token)
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
        """Where memory and time go: bytes by use, milliseconds by kind of op for each phase, expected and bound."""
        held = self.memory
        parts: dict[str, Any] = {
            "memory_bytes": {
                "weights": held.weights,
                "kv": held.kv,
                "activations": held.activations,
                "logits": held.logits,
                "context": held.context,
                "device": held.device_bytes,
                "available": self.request.device.usable_memory_bytes,
            },
            "energy": {"basis": None if self.j_per_token is None else BASIS},
        }
        for phase, each in self.phases.items():
            parts[phase] = {
                "expected": dict(each.cost.kinds),
                "host": each.cost.host_ms,
                "bound": dict(each.bound.kinds),
                "bound_shares": dict(each.bound.shares),
            }
        return parts

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
            "tensor_parallel": asked.formats.shards,
            "batch_size": asked.workload.batch,
            "sequence_length": asked.workload.length,
            "decode_length": asked.workload.generated or None,
            "forward_only": not asked.workload.generated,
            "loss": asked.workload.loss,
            **self.predicted,
            "interval": {name: list(ends) for name, ends in self.interval.items()},
            "bound": self.bound,
            "breakdown": self.breakdown,
            "fits": self.fits,
            "short_by_bytes": self.short_by_bytes,
            "remedy": self.remedy,
            "largest_batch": self.largest_batch,
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
    calibration: Calibration | Literal["auto"] | None = "auto",
) -> Estimate:
    """What `model` will cost on `device`, described by name or as data; no weights and no such device are needed.

    A batch of `batch_size` prompts of `sequence_length` tokens, each continued by `decode_length`; with `forward_only` (always, for
    an encoder) one pass with logits at all positions, and with `loss` their cross-entropy. `calibration` "auto" is what was measured
    on this machine, if it has the device. A model that does not fit is priced all the same; `fits`, `short_by_bytes` and `remedy` say so.
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
        calibration=calibration,
    )
    known = limits(request.device, request.calibration, request.link)
    phases = {phase: _phase(request, known, steps) for phase, steps in _steps(request).items()}
    needed = memory(request.spec, request.formats, request.stack, request.workload, cpu=is_cpu(request.device))
    return Estimate(
        request=request,
        phases=phases,
        memory=needed,
        fit=fit(request, needed),
        j_per_token=_joules(request, phases),
        limits=known,
    )


def _steps(request: Request) -> dict[Phase, tuple[Step, ...]]:
    """The steps whose mean is each phase's time."""
    asked, spec = request.workload, request.spec
    if not asked.generated:
        pass_over = (
            encode(asked.batch, asked.length, pooled=spec.pooler) if spec.encoder else forward(asked.batch, asked.length, loss=asked.loss)
        )
        return {"forward_ms": (pass_over,)}
    steps: dict[Phase, tuple[Step, ...]] = {"prefill_ms": (prefill(asked.batch, asked.length),)}
    if asked.generated > 1:
        # Costs grow evenly with the context, so the middle of the run (two steps, if it has no middle one) stands for all.
        twice = 2 * asked.length + asked.generated - 2
        middle = dict.fromkeys((twice // 2, -(-twice // 2)))
        steps["decode_token_ms"] = tuple(decode_equal(asked.batch, context) for context in middle)
    return steps


def _phase(request: Request, known: Limits, steps: tuple[Step, ...]) -> PhaseEstimate:
    pricing = Pricing(
        spec=request.spec,
        stack=request.stack,
        limits=known,
        efficiency=efficiency(request.device, known),
        asynchronous=not is_cpu(request.device),
    )
    listed = [(step, work(request.spec, step, request.formats)) for step in steps]
    costs = [pricing.cost(ops, step, request.formats.item_bytes) for step, ops in listed]
    return PhaseEstimate(cost=_mean(costs), bound=mean_bound(tuple(bound(ops, known) for _, ops in listed)))


def _mean(costs: list[Cost]) -> Cost:
    count = len(costs)
    return Cost(
        ms=sum(c.ms for c in costs) / count,
        kinds={kind: sum(c.kinds[kind] for c in costs) / count for kind in costs[0].kinds},
        compute_ms=sum(c.compute_ms for c in costs) / count,
        memory_ms=sum(c.memory_ms for c in costs) / count,
        host_ms=sum(c.host_ms for c in costs) / count,
    )


def _joules(request: Request, phases: Mapping[Phase, PhaseEstimate]) -> float | None:
    asked, total = request.workload, 0.0
    for phase, each in phases.items():
        joules = step_joules(each.cost, request.device, request.formats.shards)
        if joules is None:
            return None
        total += joules * (asked.generated - 1 if phase == "decode_token_ms" else 1)
    return total / (asked.batch * (asked.generated or asked.length))
