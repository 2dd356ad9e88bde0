"""What the estimator says of a record's case, or of that case on another stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from inferometer.bench.backends.registry import stack_of
from inferometer.bench.records.record import Record
from inferometer.bench.study.figure import Quantities, quantities
from inferometer.errors import UserError
from inferometer.estimate.answer import Estimate
from inferometer.estimate.estimate import estimate
from inferometer.hardware.catalogue import CPU
from inferometer.model.presets import preset

_ORDERS = ("zigzag", "diagonal", "row")
_CLEARLY: Final = 1.25


def predicted(record: Record) -> Quantities | None:
    """What was expected of a record: what it says itself, else what the estimator says now; None where neither knows."""
    said = record.predicted
    if said is not None:
        expected = quantities(
            record,
            forward_ms=said.forward_ms,
            prefill_ms=said.prefill_ms,
            decode_token_ms=said.decode_token_ms,
            total_ms=said.total_ms,
            peak_memory_bytes=said.peak_memory_bytes,
            j_per_token=said.j_per_token,
        )
        # Whether its phases share sweeps is known of a run, not of a case that never ran.
        if record.status == "ok" or order_of(record) is None:
            return expected
    stack = stack_of_backend(record.backend)
    return None if stack is None else estimated(record, stack)


def order_of(record: Record) -> str | None:
    """The order that a record's groups ran in, None without groups. Groups of a stack that names no order run as FlexGen's do."""
    if record.admission in _ORDERS:
        return record.admission
    return "zigzag" if record.admission is None and record.num_groups is not None else None


@lru_cache(maxsize=64)
def stack_of_backend(backend: str) -> str | None:
    """`stack_of`, asked once: to find that a backend is not known here takes tens of milliseconds."""
    return stack_of(backend)


def estimated(record: Record, stack: str, changes: Mapping[str, Any] | None = None) -> Quantities | None:
    """The case of a record, with changed settings, on a stack that the estimator knows; on the record's device by its datasheet.

    None for a model that is no preset, an unknown device or stack, steps without a prompt, and a case that the estimator refuses.
    """
    asked = _asked(record, changes or {})
    found = None if asked is None else _estimate(stack, **asked)
    if asked is None or found is None:
        return None
    grouped = found.request.order is not None
    return Quantities(
        batch_size=asked["batch_size"],
        sequence_length=asked["sequence_length"],
        decode_length=asked["decode_length"],
        steps=max(0, (asked["decode_length"] or 0) - 1),
        forward_ms=found.forward_ms,
        prefill_ms=None if grouped else found.prefill_ms,
        decode_token_ms=None if grouped else found.decode_token_ms,
        total_ms=found.total_ms if grouped else None,
        peak_memory_bytes=found.peak_memory_bytes,
        j_per_token=found.j_per_token,
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """Milliseconds that the host is expected to need to launch a step, or a forward, and the device to do its work."""

    host_ms: float
    device_ms: float

    @property
    def is_the_hosts(self) -> bool:
        """Whether the device waits for launches."""
        return self.host_ms > _CLEARLY * self.device_ms


def pace(record: Record) -> Pace | None:
    """Of the longest part of a record's case on its own stack; None where the estimator does not know the case."""
    stack, asked = stack_of_backend(record.backend), _asked(record, {})
    found = None if stack is None or asked is None else _estimate(stack, **asked)
    if found is None:
        return None
    cost = (found.phases.get("decode_token_ms") or found.phases.get("forward_ms") or next(iter(found.phases.values()))).cost
    return Pace(cost.host_ms, sum(cost.kinds.values()))


def _asked(record: Record, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the estimator is asked for a record's case; None where it cannot be."""
    asked = {name: getattr(record, name) for name in ("model", "batch_size", "sequence_length", "decode_length", "dtype", "quantize")}
    asked |= {name: getattr(record, name) for name in ("tensor_parallel", "forward_only", "loss", "group_size", "device")}
    asked["admission"] = order_of(record)
    asked |= {name: value for name, value in changes.items() if name in asked}
    return None if asked["device"] is None or preset(asked["model"]) is None or record.decode_only else asked


@lru_cache(maxsize=4096)
def _estimate(stack: str, *, admission: str | None, group_size: int | None, device: str, **asked: Any) -> Estimate | None:
    grouped = admission is not None
    try:
        # A processor has no datasheet: what was measured of it is all there is.
        calibration: Literal["auto"] | None = "auto" if device == CPU else None
        return estimate(
            device=device,
            stack=stack,
            admission=admission,
            group_size=group_size if grouped else None,
            calibration=calibration,
            **asked,
        )
    except UserError:
        return None
