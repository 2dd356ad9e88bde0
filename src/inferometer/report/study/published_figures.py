"""Published figures of a record's case, from the measured rows that the estimator is held to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inferometer.bench.records.record import Record
from inferometer.bench.study.figure import GIB, Quantities, quantities
from inferometer.bench.study.layout import PublishedSpec
from inferometer.estimate.measured import MeasuredRow, load_rows
from inferometer.hardware.catalogue import find_device
from inferometer.model.presets import preset
from inferometer.report.study.case_prediction import order_of, stack_of_backend


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication measured of a case, what its own estimator said (None without one), and on what.

    gpus: devices that worked on it. notes: known defects of the figures.
    """

    measured: Quantities
    estimated: Quantities | None
    device: str
    gpus: int
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def alike(self, record: Record) -> bool:
        """Whether the record is of the same hardware, which is what makes a ratio of the two."""
        return self.device == record.device and self.gpus == max(1, record.gpus)

    @property
    def where(self) -> str:
        """The hardware in words."""
        name = find_device(self.device).name
        return name if self.gpus == 1 else f"{self.gpus} x {name}"


def rows_of(spec: PublishedSpec) -> tuple[MeasuredRow, ...]:
    """The rows that a specification names, of any case."""
    rows = (row for regime in spec.regimes for row in load_rows(regime))
    asked = {"stack": spec.stack, "admission": spec.admission, "dtype": spec.dtype, "mode": spec.mode}
    narrowed = (row for row in rows if all(value in (None, getattr(row, name)) for name, value in asked.items()))
    return tuple(row for row in narrowed if not spec.places or any(place in row.source for place in spec.places))


def published(record: Record, spec: PublishedSpec, *, device: str | None = None) -> tuple[Published, ...]:
    """The publication's figures of the record's case, an entry for each device that it has them of, or for the one that is named.

    Where several rows give the same quantity of the same case, what the specification names is not one measurement, and there is no
    figure.
    """
    found: dict[str, list[MeasuredRow]] = {}
    for row in rows_of(spec):
        if _same_stack(row, record, spec) and _same_case(row, record, spec.prompt_tokens) and device in (None, row.device):
            found.setdefault(row.device, []).append(row)
    return tuple(_put_together(record, rows) for rows in found.values() if _unequivocal(rows))


def _same_stack(row: MeasuredRow, record: Record, spec: PublishedSpec) -> bool:
    """Where no stack is named, a publication is of the record's own, in the record's own type."""
    if spec.stack is None and (row.stack != stack_of_backend(record.backend) or (spec.dtype is None and row.dtype != record.dtype)):
        return False
    order = spec.admission or order_of(record)
    return row.quantize == record.quantize and row.admission in (None, order)


def _same_case(row: MeasuredRow, record: Record, prompt_tokens: int | None) -> bool:
    known = preset(record.model)
    # Layers spread over devices are no tensor parallelism: what was published as one shard is compared with one.
    shards = 1 if row.parallel == "layers" else row.gpus
    if known is None or known.name != row.model or shards != record.tensor_parallel or record.decode_only:
        return False
    if row.batch != record.batch_size or row.prompt_tokens != (prompt_tokens or record.sequence_length):
        return False
    if row.mode == "groups":
        same_groups = (row.group_size, row.groups) == (record.group_size, record.num_groups)
        return same_groups and row.new_tokens == record.decode_length
    if record.forward_only:
        return row.mode == "forward" and row.loss == record.loss
    if row.mode == "decode":
        # A source counts the steps, or the tokens that they and the prefill give.
        return record.decode_length in (row.new_tokens, row.new_tokens + 1)
    if row.mode == "prefill":
        return True
    return row.mode == "generate" and row.new_tokens == record.decode_length


def _unequivocal(rows: list[MeasuredRow]) -> bool:
    kinds = [(row.mode if row.quantity == "time_ms" else "", row.quantity) for row in rows]
    return len(set(kinds)) == len(kinds)


def _put_together(record: Record, rows: list[MeasuredRow]) -> Published:
    estimates = [row for row in rows if row.published_estimate is not None]
    return Published(
        measured=_quantities(record, [(row, row.value) for row in rows]),
        estimated=_quantities(record, [(row, row.published_estimate) for row in estimates]) if estimates else None,
        device=rows[0].device,
        gpus=rows[0].gpus,
        sources=tuple(dict.fromkeys(row.source for row in rows)),
        notes=tuple(dict.fromkeys(row.note for row in rows if row.note is not None)),
    )


def _quantities(record: Record, values: Iterable[tuple[MeasuredRow, float | None]]) -> Quantities:
    names = {"forward": "forward_ms", "prefill": "prefill_ms", "decode": "decode_token_ms", "generate": "total_ms", "groups": "total_ms"}
    found: dict[str, Any] = {}
    for row, value in values:
        if value is None:
            continue
        if row.quantity == "peak_gib":
            found["peak_memory_bytes"] = value * GIB
        elif row.quantity == "j_per_token":
            found["j_per_token"] = value
        elif row.quantity == "time_ms" and row.mode in names:
            found[names[row.mode]] = value
    return quantities(record, **found)
