"""Records judged after the fact: what the estimator says of each case now, and what it said then, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from inferometer.bench.backends.registry import stack_of
from inferometer.bench.prediction.priced import estimator_arguments
from inferometer.bench.records.record import Record
from inferometer.errors import UserError
from inferometer.estimate.deviation import Deviation
from inferometer.estimate.estimate import Estimate, estimate
from inferometer.estimate.request import Request, resolve
from inferometer.hardware.calibration import Calibration
from inferometer.model.description import ModelDescription, describe
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec

TIMES = ("forward_ms", "prefill_ms", "decode_token_ms")
FIGURES = (*TIMES, "peak_memory_bytes", "j_per_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """One figure of one record. measured: the median of its runs, if it is a time. now, then: None where there is no prediction."""

    record: Record
    figure: str
    measured: float
    now: float | None
    then: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What records say of the estimator. skipped: why no figure of a record was predicted anew, by its case."""

    figures: tuple[Hindsight, ...]
    skipped: Mapping[str, str]

    def deviation(self, figure: str) -> Deviation | None:
        """Of the predictions made now, over all records; None without any."""
        rows = [(each.record.case_id, each.measured, each.now) for each in self.figures if each.figure == figure and each.now is not None]
        return Deviation.of(rows) if rows else None


def review(records: Iterable[Record]) -> Review:
    """Every figure that a record measured, beside its predictions. Nothing is fetched: a model is a preset or a folder that is here."""
    figures: list[Hindsight] = []
    skipped: dict[str, str] = {}
    for record in records:
        if record.status != "ok":
            continue
        try:
            found: Estimate | None = estimate_of(record)
        except UserError as error:
            found, skipped[record.case_id] = None, str(error)
        figures += _figures(record, found)
    return Review(figures=tuple(figures), skipped=skipped)


def _figures(record: Record, found: Estimate | None) -> Iterator[Hindsight]:
    for figure, measured in _measured(record):
        now = None if found is None else getattr(found, figure)
        then = None if record.predicted is None else getattr(record.predicted, figure)
        # A run of groups under an admission is not the batch that the estimate is of.
        yield Hindsight(record=record, figure=figure, measured=measured, now=now or None, then=then or None)


def _measured(record: Record) -> Iterator[tuple[str, float]]:
    for name in TIMES:
        summary = getattr(record, name)
        if summary is not None:
            yield name, summary.p50
    if record.peak_memory_bytes.allocated:
        yield "peak_memory_bytes", float(record.peak_memory_bytes.allocated)
    joules = (record.energy or {}).get("j_per_token")
    if joules:
        yield "j_per_token", float(joules)


def request_of(record: Record) -> Request:
    """A record's case as the estimator takes it, to be priced in part. Raises UserError, saying why, for one that it cannot price."""
    unset: dict[str, Any] = dict.fromkeys(("gpus", "link", "admission", "group_size", "num_groups", "offload", "mixed_tokens"))
    found: Request = _asked(record, partial(resolve, parallel="tensor", calibration="auto", **unset))
    return found


def estimate_of(record: Record, calibration: Calibration | Literal["auto"] = "auto") -> Estimate:
    """What the estimator says of a record's case now. calibration: as `estimate` takes it. Raises UserError as `request_of` does."""
    found: Estimate = _asked(record, partial(estimate, calibration=calibration))
    return found


def _asked(record: Record, take: Callable[..., Any]) -> Any:
    """What `take` says of the case."""
    if record.device is None:
        raise UserError(f"the catalogue has no {record.device_name or 'such device'}")
    stack = stack_of(record.backend)
    if stack is None:
        raise UserError(f"no stack is known for backend {record.backend}")
    if record.admission is not None:
        raise UserError(f"admission {record.admission} is not estimated as a batch")
    options: dict[str, Any] = {} if record.link is None else {"link": record.link}
    return take(_model(record.model), record.device, **estimator_arguments(record, stack), **options)


def _model(name: str) -> ModelSpec | ModelDescription:
    known = preset(name)
    if known is not None:
        return known.spec()
    if (Path(name) / "config.json").is_file() or (name.endswith(".gguf") and Path(name).is_file()):
        return describe(name, config_only=True)
    raise UserError(f"{name} is no preset and not here")
