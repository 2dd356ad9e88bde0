"""What hardware and estimator say of a case before it runs, and how near a measurement came to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from inferometer.bench.case import Case
from inferometer.bench.record import Bound, Predicted
from inferometer.bench.registry import format_of, stack_of
from inferometer.bench.statistics import Summary
from inferometer.errors import UserError
from inferometer.estimate.bound import Bound as PhaseBound
from inferometer.estimate.estimate import Estimate, estimate
from inferometer.estimate.stack import find_stack
from inferometer.hardware.device import DeviceSpec
from inferometer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Outlook:
    """A case's bound and prediction, None where too little is known of the device; phases: the bound of each timed phase."""

    bound: Bound | None = None
    predicted: Predicted | None = None
    phases: Mapping[str, PhaseBound] = field(default_factory=dict)

    def utilisation(self, times: Mapping[str, Summary]) -> dict[str, float | None] | None:
        """Shares of the limits that the compulsory work takes up over the mean measured times; None where no limit is known.

        mbu: bytes of a decode step (or of the forward) against the memory bandwidth. mfu: FLOPs of the prefill (or of the forward)
        against the rate of the units that do them. None for the one whose phase was not timed.
        """
        found: dict[str, float | None] = {"mbu": None, "mfu": None}
        for name, phases in {"mbu": ("decode_token_ms", "forward_ms"), "mfu": ("prefill_ms", "forward_ms")}.items():
            phase = next((phase for phase in phases if phase in times and phase in self.phases), None)
            if phase is not None:
                least = self.phases[phase].memory_ms if name == "mbu" else self.phases[phase].compute_ms
                found[name] = least / times[phase].mean
        return found if any(share is not None for share in found.values()) else None


def outlook(case: Case, spec: ModelSpec, device: DeviceSpec | None) -> Outlook:
    """The outlook of a case on `device`, None for one that the catalogue does not have, or a backend that the estimator cannot price.

    Limits that are only assumed, as of a processor that was never calibrated, give a prediction but no bound.
    """
    stack = stack_of(case.backend)
    if device is None or stack is None:
        return Outlook()
    price = partial(
        estimate,
        spec,
        device,
        batch_size=case.batch_size,
        sequence_length=case.prompt_length,
        decode_length=None if case.decode_length is None else case.steps + 1,
        dtype=case.dtype,
        quantize=format_of(case.backend, case.quantize),
        kv_dtype=case.kv_dtype or "auto",
        tensor_parallel=case.tensor_parallel,
        stack=stack,
        forward_only=case.forward_only,
        loss=case.loss,
    )
    try:
        found = price()
        predicted = Predicted(**found.predicted)
        if find_stack(stack).groups_apart and case.admission is not None and case.group_size is not None:
            predicted = _of_groups(price(admission=case.admission, group_size=case.group_size), -(-case.batch_size // case.group_size))
    except UserError:
        return Outlook()  # a description of the device that lacks the rates of this case
    if case.decode_only:
        predicted = replace(predicted, prefill_ms=None, j_per_token=None)
    if found.limits.basis == "assumed":
        return Outlook(predicted=predicted)
    bound = Bound(**found.bound)
    if case.decode_only:
        bound = replace(bound, prefill_ms=None, binds={name: what for name, what in (bound.binds or {}).items() if name != "prefill_ms"})
    return Outlook(bound, predicted, {str(phase): each.bound for phase, each in found.phases.items()})


def _of_groups(found: Estimate, groups: int) -> Predicted:
    """A stack that runs a batch's groups one after another within each layer: its estimate is of one, and a case's times are of all."""
    times = ("prefill_ms", "decode_token_ms")
    given = dict(found.predicted)
    given |= {name: None if given[name] is None else groups * given[name] for name in times}
    interval = dict(given["interval"] or {})
    interval |= {name: (groups * interval[name][0], groups * interval[name][1]) for name in times if interval.get(name) is not None}
    return Predicted(**{**given, "interval": interval or None})
