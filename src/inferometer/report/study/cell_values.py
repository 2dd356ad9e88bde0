"""The number that a field of a cell stands for, from a record and from what is said of its case elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.bench.records.record import Record
from inferometer.bench.study.cell import Field, Source
from inferometer.bench.study.figure import Figure, Quantities, bounded, measured, statistic
from inferometer.report.study.case_prediction import predicted
from inferometer.report.study.published_figures import Published


@dataclass(frozen=True, slots=True)
class CellValues:
    """One case's figures from all their sources; bounded is the record that has the bound of its work, which may be another's."""

    record: Record
    published: Published | None = None
    bounded: Record | None = None

    def of(self, field: Field) -> float | None:
        """The number, None where its source does not know it. Raises TypeError for a field without a figure."""
        if field.figure is None:
            raise TypeError("the field has no figure yet")
        return self.value(field.figure, field.source, field.statistic)

    def value(self, figure: Figure, source: Source, name: str = "mean") -> float | None:
        """A figure from a source."""
        if source == "measured":
            return statistic(self.record, figure, name)
        if source == "error":
            return _relative(self.value(figure, "predicted"), self.value(figure, "measured"))
        if source == "published_error":
            return _relative(self.value(figure, "published_estimate"), self.value(figure, "published"))
        if source == "share":
            return self._share(figure)
        said = self._quantities(source)
        return None if said is None else figure.of(said)

    def _quantities(self, source: Source) -> Quantities | None:
        if source == "published":
            return None if self.published is None else self.published.measured
        if source == "published_estimate":
            return None if self.published is None else self.published.estimated
        if source == "bound":
            return self.bound
        return predicted(self.record) if source == "predicted" else measured(self.record)

    @property
    def bound(self) -> Quantities | None:
        """The least that the device needs, None where its limits are not known."""
        return None if self.bounded is None else bounded(self.bounded)

    def _share(self, figure: Figure) -> float | None:
        """Of the bound: the least time over the time, or the rate over the highest rate."""
        bound, reached = self.value(figure, "bound"), self.value(figure, "measured")
        if not bound or not reached:
            return None
        return bound / reached if figure.better == "low" else reached / bound


def _relative(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base - 1
