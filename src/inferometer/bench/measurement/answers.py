"""What a column's runs come to: a record, with the bound and the prediction of its case beside the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import torch

from inferometer.bench.backends.backend import PageUse
from inferometer.bench.machine.environment import environment
from inferometer.bench.measurement.column import Column, Failure, Unopened
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.prediction.outlook import Outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Checked, PeakMemory, Record, throughput, work


class Answers:
    """Records of cases on one device. `outlook_of` gives a case's bound and prediction, `sizes_of` the bytes that it is about."""

    def __init__(
        self,
        effort: Effort,
        device: torch.device,
        outlook_of: Callable[[Case], Outlook],
        sizes_of: Callable[[Case], Mapping[str, int] | None],
    ) -> None:
        self._effort = effort
        self._device = device
        self._outlook_of = outlook_of
        self._sizes_of = sizes_of
        self._environment = environment(device)

    def of(self, column: Column, started: datetime) -> Record:
        """Of a column that has run as often as the effort says, or has failed."""
        if column.failure is not None:
            return self._answer(column.case, started, column.backend.stack_version, failure=column.failure, checked=column.checked)
        times = column.times()
        case = column.case
        return self._answer(
            case,
            started,
            column.backend.stack_version,
            times=times,
            checked=column.checked,
            pages=column.pages,
            peak_memory=column.meter.peak,
            energy=column.energy.result,
            unsteady=column.unsteady,
            launches=getattr(column.backend, "launches", None) if case.decode_length is not None else None,
            sensors=column.sensors,
            more={"first_tokens": column.first_tokens, **_link(column)},
        )

    def of_unopened(self, case: Case, backend: Unopened, started: datetime) -> Record:
        """Of a case whose backend did not open."""
        return self._answer(case, started, backend.stack_version, failure=backend.failure)

    def _answer(
        self,
        case: Case,
        started: datetime,
        stack_version: str,
        *,
        failure: Failure | None = None,
        times: Mapping[str, Any] | None = None,
        checked: Checked | None = None,
        pages: PageUse | None = None,
        peak_memory: PeakMemory | None = None,
        energy: Mapping[str, Any] | None = None,
        unsteady: int = 0,
        launches: Mapping[str, int] | None = None,
        sensors: Mapping[str, object] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Record:
        times = times or {}
        expected = self._outlook_of(case)
        if case.admission not in (None, "zigzag") or ("total_ms" in times and "prefill_ms" not in times):
            expected = expected.whole(case.steps)
        counted = {name: times.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
        rates = throughput(work(batch_size=case.batch_size, sequence_length=case.sequence_length, steps=case.steps, **counted))
        return Record(
            **case.asked,
            started_at=started.isoformat(timespec="milliseconds"),
            stack_version=stack_version,
            gpus=case.tensor_parallel if self._device.type == "cuda" else 0,
            runs=self._effort.runs,
            warmups=self._effort.warmups + unsteady,
            status="ok" if failure is None else failure.status,
            evidence=None if failure is None else failure.evidence,
            throughput=rates,
            peak_memory_bytes=peak_memory or PeakMemory(),
            pages_peak=None if pages is None else pages.peak,
            page_size=None if pages is None else pages.page_size,
            sizes=self._sizes_of(case),
            energy=energy,
            launches=launches,
            bound=expected.bound,
            utilisation=expected.utilisation(times),
            predicted=expected.predicted,
            environment=self._environment if sensors is None else {**self._environment, "sensors": sensors},
            checked=checked,
            **(more or {}),
            **times,
        )


def _link(column: Column) -> dict[str, Any]:
    """What a record says of the link."""
    if not column.link_bytes or not column.seconds:
        return {}
    rate, most = column.link_bytes / column.seconds, getattr(column.backend, "link_copy_bytes_s", None)
    bound = None if most is None else {"copy_gb_s": most / 1e9, "share": rate / most}
    return {"link_gb_s": rate / 1e9, "link_bound": bound}
