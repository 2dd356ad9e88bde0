"""What hardware and estimator say of a case before it runs, and how near a measurement came to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from inferometer.bench.backends.registry import stack_of
from inferometer.bench.prediction.priced import estimator_arguments, reads_disk
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Bound, Predicted
from inferometer.bench.records.statistics import Summary
from inferometer.errors import UserError
from inferometer.estimate.bound import Bound as PhaseBound
from inferometer.estimate.estimate import Estimate, estimate
from inferometer.estimate.plain import faster_in_plain
from inferometer.estimate.run_bound import RunBound, in_any_order
from inferometer.estimate.stack import find_stack
from inferometer.hardware.device import DeviceSpec
from inferometer.model.formats import stored_method
from inferometer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Outlook:
    """A case's bound and prediction, None where too little is known of the device; phases: the bound of each timed phase.

    total_ms: what is predicted for the whole of a run in the order that the case asks for, and its interval. least: its bound, where
    that order is one of groups.
    """

    bound: Bound | None = None
    predicted: Predicted | None = None
    phases: Mapping[str, PhaseBound] = field(default_factory=dict)
    total_ms: tuple[float, tuple[float, float]] | None = None
    least: RunBound | None = None

    def whole(self, steps: int) -> Outlook:
        """That of a run whose prefill and `steps` decode steps share sweeps: of its whole alone."""
        bound = predicted = None
        if self.predicted is not None and self.total_ms is not None:
            interval = {
                name: ends for name, ends in (self.predicted.interval or {}).items() if name in ("peak_memory_bytes", "j_per_token")
            }
            time, ends = self.total_ms
            predicted = replace(
                self.predicted,
                prefill_ms=None,
                decode_token_ms=None,
                total_ms=time,
                interval={**interval, "total_ms": ends},
                faster_unquantized=None,
            )
        prefill, decode = (self.phases.get(name) for name in ("prefill_ms", "decode_token_ms"))
        if self.bound is not None and prefill is not None:
            least = self.least or in_any_order(prefill, decode, steps)
            bound = Bound(total_ms=least.ms, binds={"total_ms": least.binds}, basis=self.bound.basis)
        return Outlook(bound, predicted)

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
    price = partial(estimate, spec, device, **estimator_arguments(case, stack))
    try:
        found = price()
        ordered = _ordered(price, case, found)
        predicted = Predicted(**found.predicted, faster_unquantized=_faster_in_plain(price, case, found))
        if ordered is not found and find_stack(stack).groups_apart:
            predicted = _of_groups(ordered, -(-case.batch_size // (case.group_size or 1)))
        elif ordered is not found:
            predicted = _in_order(predicted, ordered)
    except UserError:
        return Outlook()  # a description of the device that lacks the rates of this case
    unpaced = reads_disk(case, spec, found.request.formats)
    if unpaced:
        kept = {name: ends for name, ends in (predicted.interval or {}).items() if name == "peak_memory_bytes"}
        times = dict.fromkeys(("forward_ms", "prefill_ms", "decode_token_ms", "faster_unquantized"))
        predicted = replace(predicted, **times, j_per_token=None, interval=kept)
    if case.decode_only:
        faster = {name: ms for name, ms in (predicted.faster_unquantized or {}).items() if name != "prefill_ms"}
        predicted = replace(predicted, prefill_ms=None, j_per_token=None, faster_unquantized=faster or None)
    total = None if ordered.total_ms is None or unpaced else (ordered.total_ms, ordered.interval["total_ms"])
    if found.limits.basis == "assumed":
        return Outlook(predicted=predicted, total_ms=total)
    bound = Bound(**found.bound)
    if case.decode_only:
        bound = replace(bound, prefill_ms=None, binds={name: what for name, what in (bound.binds or {}).items() if name != "prefill_ms"})
    least = None if ordered is found else ordered.least
    return Outlook(bound, predicted, {str(phase): each.bound for phase, each in found.phases.items()}, total, least)


def _faster_in_plain(price: Callable[..., Estimate], case: Case, found: Estimate) -> dict[str, float] | None:
    """Times that are expected to be shorter with weights as they are, None for none; nor of what a checkpoint of another program holds."""
    if stored_method(case.quantize) is not None:
        return None
    plain = faster_in_plain(found, lambda: price(quantize=None))
    return {phase: each.phases[phase].cost.ms for phase, each in plain.items()} or None


def _ordered(price: Callable[..., Estimate], case: Case, whole: Estimate) -> Estimate:
    """The estimate of the case's admission by groups."""
    if case.admission in (None, "continuous") or case.group_size is None:
        return whole
    return price(admission=case.admission, group_size=case.group_size, num_groups=case.num_groups)


def _in_order(batch: Predicted, ordered: Estimate) -> Predicted:
    """The prediction of a batch whose groups share sweeps: the order decides how many sequences hold pages at once, and the joules."""
    given = ordered.predicted
    names = ("peak_memory_bytes", "j_per_token")
    ends = {name: given["interval"][name] for name in names if name in given["interval"]}
    interval = {name: each for name, each in (batch.interval or {}).items() if name not in names} | ends
    return replace(batch, **{name: given[name] for name in names}, interval=interval)


def _times(count: int, ends: tuple[float, float]) -> tuple[float, float]:
    return count * ends[0], count * ends[1]


def _of_groups(found: Estimate, groups: int) -> Predicted:
    """A stack that runs a batch's groups one after another within each layer: its estimate is of one, and a case's times are of all."""
    times = ("prefill_ms", "decode_token_ms")
    given = dict(found.predicted)
    given |= {name: None if given[name] is None else groups * given[name] for name in times}
    interval = dict(given["interval"] or {})
    interval |= {name: _times(groups, interval[name]) for name in times if interval.get(name) is not None}
    return Predicted(**{**given, "interval": interval or None})
