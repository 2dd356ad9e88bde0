"""An estimate as it is answered: times, memory and energy beside their bounds, with intervals, a breakdown and a basis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from inferometer.estimate.bound import Bound
from inferometer.estimate.cost import Cost, OpTime
from inferometer.estimate.fit import Fit
from inferometer.estimate.interval import MEMORY_FACTORS, Factors, energy_factors, time_factors, together
from inferometer.estimate.limits import Limits
from inferometer.estimate.measuring import measuring
from inferometer.estimate.memory import Memory, weight_parts
from inferometer.estimate.request import Request
from inferometer.estimate.run import Total
from inferometer.estimate.run_bound import RunBound
from inferometer.estimate.stored_weights import stored_words

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

    total, least: the run as a whole, prompts and all generated tokens or the groups in their order, and its bound; None for a forward
    alone.
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
    least: RunBound | None
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
    def times(self) -> Mapping[Phase, Factors]:
        """What measured over predicted times of each phase are expected to lie between, from rows that are read when this is asked for."""
        factors = partial(time_factors, self.request, self.limits.basis)
        return {phase: factors(decodes=phase == "decode_token_ms", exposed=each.cost.exposed_share) for phase, each in self.phases.items()}

    @property
    def energies(self) -> Factors:
        """The same for joules."""
        return energy_factors(self.request, self.limits.basis, self._of_all)

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
    def largest_context(self) -> int | None:
        """The longest prompts of this batch that fit, with the tokens that follow; None if any length does."""
        return self.fit.largest_context

    @property
    def verify(self) -> str:
        """The command that would measure it, of the program that the stack is; whether that runs such a case, it says."""
        return measuring(self.request)

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
        """The first of the flags that would make it fit; None if it fits, or if no setting would."""
        return self.fit.remedy

    @property
    def largest_batch(self) -> int | None:
        """The most sequences of these lengths that fit; None if any number does."""
        return self.fit.largest_batch

    @property
    def basis(self) -> str:
        """Where the limits are from, what stands between them and the times, and what the interval is from."""
        source = self._of_all.words
        return f"{self.limits.basis} limits, shapes of the ops, {self.request.stack.name}'s constants; interval: {source}"

    @property
    def weights_format(self) -> str | None:
        """What the checkpoint's weights are in, where that is stated, what they are multiplied in; None for those that are plain there."""
        return stored_words(self.request, self.limits)

    @property
    def bound(self) -> dict[str, Any]:
        """The fields of a record's `bound`: least times, what binds each, and the basis."""
        times: dict[str, Any] = {phase: self.phases[phase].bound.ms if phase in self.phases else None for phase in PHASES}
        binds = {phase: each.bound.binds for phase, each in self.phases.items()}
        return {**times, "binds": binds, "basis": self.limits.basis}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """(low, high) by the figure's name. No time is expected below its bound."""
        factors = self.times
        found: dict[str, tuple[float, float]] = {
            name: factors[name].around(each.cost.ms, each.bound.ms) for name, each in self.phases.items()
        }
        if self.total_ms is not None and self.least is not None:
            found["total_ms"] = self._of_all.around(self.total_ms, self.least.ms)
        if self.mixed is not None:
            found[MIXED] = self._of_all.around(self.mixed.cost.ms, self.mixed.bound.ms)
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
            "weights_by_part": dict(weight_parts(self.request.spec, self.request.formats, self.request.stack)),
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
                "host_link": each.cost.stream_ms,
                "host_link_bound": each.bound.stream_ms,
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
            "weights_format": self.weights_format,
            "kv_dtype": asked.formats.kv_dtype,
            "parallel": asked.layout.parallel,
            "tensor_parallel": asked.formats.shards,
            "admission": asked.order or "continuous",
            "group_size": asked.workload.group,
            "offload": asked.offload.name,
            "batch_size": asked.workload.batch,
            "sequence_length": asked.workload.length,
            "decode_length": asked.workload.generated or None,
            "forward_only": not asked.workload.generated,
            "loss": asked.workload.loss,
            **self.predicted,
            "total_ms": self.total_ms,
            **({} if self.mixed is None else {MIXED: self.mixed.cost.ms}),
            "interval": {name: list(ends) for name, ends in self.interval.items()},
            "bound": {**self.bound, "total_ms": None if self.least is None else self.least.ms},
            "breakdown": self.breakdown,
            "fits": self.fits,
            "short_by_bytes": self.short_by_bytes,
            "remedy": self.remedy,
            "remedies": list(self.fit.remedies),
            "remedy_offload": self.fit.offload,
            "largest_batch": self.largest_batch,
            "largest_context": self.largest_context,
            "verify": self.verify,
        }

    @property
    def _of_all(self) -> Factors:
        """Of the run as a whole."""
        steps = {"decode_token_ms": self.request.workload.generated - 1}
        return together([(steps.get(phase, 1) * each.cost.ms, self.times[phase]) for phase, each in self.phases.items()])

    def _time(self, phase: Phase) -> float | None:
        return self.phases[phase].cost.ms if phase in self.phases else None


def _op(part: OpTime, clock: float) -> dict[str, Any]:
    return {"name": part.op.name, "kind": part.op.kind, "count": part.op.count, "ms": part.seconds(clock) * 1e3, "binds": part.binds}
