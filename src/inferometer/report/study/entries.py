"""What each cell of a study's table shows: a figure, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inferometer.bench.records.record import Record
from inferometer.bench.study.cell import Source, Template, shaped
from inferometer.bench.study.figure import Figure, limit, statistic
from inferometer.bench.study.keys import settings
from inferometer.bench.study.layout import TOTAL_LENGTH, WORDS, BlockSpec, ColumnSpec, PlotSpec, PublishedSpec, TableSpec, Where
from inferometer.report.markup.parts import joined
from inferometer.report.records.beyond_bound import BEYOND
from inferometer.report.records.origin import Origin
from inferometer.report.study.case_prediction import estimated, pace
from inferometer.report.study.cell_values import CellValues
from inferometer.report.study.columns import Row
from inferometer.report.study.footnotes import Footnotes
from inferometer.report.study.part_records import PartRecords, setting, workload
from inferometer.report.study.published_figures import Published, published


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell: its text, and the number behind it if there is one."""

    text: str
    value: float | None = None


NOTHING = Entry("")
_FAR_APART: Final = 1.25
"""The longest over the shortest of a case's runs, from which on their mean alone would mislead."""
_CALIBRATED: Final = "calibrated"


@dataclass(frozen=True, slots=True)
class Entries:
    """The cells of one table from one source. What they have to say beside their figures goes into `notes`."""

    spec: TableSpec | PlotSpec
    records: PartRecords
    source: Source
    notes: Footnotes

    def entry(self, row: Row, column: ColumnSpec, block: BlockSpec | None) -> Entry:
        """One cell; nothing where the block does not have the column."""
        if block is not None and column.blocks and block.label not in column.blocks:
            return NOTHING
        if column.cell is None:
            raise TypeError("a column whose cell is not resolved")
        cell = column.cell if block is None else column.cell.of(block.figure)
        if column.given:
            value = column.given.get(str(list(row.where.values())[-1][0]), column.given.get(row.labels[-1]))
            return Entry(self._word("missing")) if value is None else Entry(shaped(value, cell.fields[0].shape or "g"), value)
        if column.ratio is not None:
            return self._ratio(row, column, column.ratio, cell)
        if column.stack is not None or column.published_only:
            return self._elsewhere(row, column, cell)
        name = ", ".join(each for each in (column.group, column.heading, row.name) if each)
        found = self._one({**row.where, **column.where}, name, row.device)
        if isinstance(found, Entry):
            return found
        if self.source == "published":
            return self._published(found, self._publication(found, column, row.device), cell, name)
        return self._shown(found, cell, name)

    @property
    def _measures(self) -> bool:
        return self.source == "measured"

    def _word(self, name: str) -> str:
        """What stands for a figure that is not there; a table that is repeated leaves the place empty."""
        words: Mapping[str, str] = self.spec.words if isinstance(self.spec, TableSpec) else WORDS
        return words[name] if self._measures else ""

    def _one(self, where: Where, name: str, device: str | None = None) -> Record | Entry:
        """The record with these settings, or what the cell says instead: none there, left out, several cases in one place.

        device: of a publication, whose case may have been run here on any; a record of that device comes first.
        """
        there = self.records.where(where)
        stack = ("backend", "dtype", "quantize", "admission")
        cases = {record.case_id if device is None else workload(record, stack) for record in there.records}
        if len(cases) == 1:
            return next((record for record in there.records if record.device == device), there.records[0])
        if there.records:
            return self._several(len(cases), there.records, name)
        if there.left_out and self._measures:
            return Entry(self.notes.mark(self._word("skipped"), f"skipped: {there.left_out[0].excluded}", name))
        return Entry(self._word("missing"))

    def _several(self, count: int, records: Sequence[Record], name: str, other_than: Sequence[str] = ()) -> Entry:
        names = [each for each in settings() if each != TOTAL_LENGTH and each not in other_than]
        apart = [each for each in names if len({setting(record, each) for record in records}) > 1]
        several = f"{count} cases fall into one cell: name in rows, columns or where what tells them apart, which is {joined(apart)}"
        return Entry(self.notes.mark("several", several, name)) if self._measures else NOTHING

    def _shown(self, record: Record, cell: Template, name: str) -> Entry:
        values = CellValues(record, bounded=self.records.bounded(record))
        found = _filled(values, cell)
        if found is None and self._measures and record.status != "ok":
            return Entry(self.notes.mark(self._word(record.status), f"{record.status}: {record.evidence}", name))
        if found is None:
            return Entry(self._word("unknown"))
        if self._beyond(values, cell):
            self.notes.beyond.append(record if values.bounded is None else values.bounded)
        if self._measures:
            apart = self._scatter(record, cell)
            return found if apart is None else replace(found, text=self.notes.mark(found.text, apart, name))
        text = found.text + self._beside(values, cell)
        note = self._other_basis(values.bounded) or self._host(record, cell)
        return Entry(text if note is None else self.notes.mark(text, note, name), found.value)

    def _beyond(self, values: CellValues, cell: Template) -> bool:
        """Whether the cell shows a share of a bound that is above 100 %."""
        shown = [each.figure for each in cell.fields if each.source == "share"] + [_figure(cell)] * (self.source == "bound")
        return any((values.value(figure, "share") or 0.0) > BEYOND for figure in shown if figure is not None)

    def _scatter(self, record: Record, cell: Template) -> str | None:
        """That the runs behind a mean lie far apart, unless the table shows their statistics itself."""
        field = cell.fields[0]
        if field.figure is None or not field.plain or not isinstance(self.spec, TableSpec) or self.spec.kind != "grid":
            return None
        if record.serving is not None:  # of a server they are requests, which differ in what they waited for
            return None
        least, most = (statistic(record, field.figure, name) for name in ("min", "max"))
        if not least or not most or most < _FAR_APART * least:
            return None
        return f"a mean of {record.runs} runs that lie from {field.text(least)} to {field.text(most)}"

    def _host(self, record: Record, cell: Template) -> str | None:
        """That the host sets the pace of a predicted time: neither the memory nor the matrix units then say how fast the stack can be."""
        figure = cell.fields[0].figure
        if self.source != "predicted" or figure is None or (figure.time or figure.rate) is None:
            return None
        expected = pace(record)
        if expected is None or not expected.is_the_hosts:
            return None
        step = "forward" if record.forward_only else "step"
        return f"the host sets the pace: {expected.host_ms:.3g} ms of its own a {step}, for {expected.device_ms:.3g} ms of work"

    def _other_basis(self, bounded: Record | None) -> str | None:
        """What limits a bound is of, where the table has bounds of others as well: those of a run that was not calibrated are higher."""
        if self.source != "bound" or bounded is None or bounded.bound is None or bounded.bound.basis == _CALIBRATED:
            return None
        bases = {record.bound.basis for record in self.records.records if record.bound is not None}
        return f"by {bounded.bound.basis} limits: nothing was calibrated where it ran" if len(bases) > 1 else None

    def _beside(self, values: CellValues, cell: Template) -> str:
        """In brackets, the first figure as measured over what was predicted, or the share of its bound that was reached and what binds."""
        figure = _figure(cell)
        reached, other = values.value(figure, "measured"), values.value(figure, self.source)
        if reached is None or not other:
            return ""
        self.notes.compared = True
        if self.source == "predicted":
            return f" ({shaped(reached / other, '.2f')})"
        share = values.value(figure, "share")
        what = None if values.bound is None else limit(figure, values.bound)
        if share is None:
            return ""
        shown = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
        return f" ({shown}, {what})" if what else f" ({shown})"

    def _published(self, record: Record, found: Published | None, cell: Template, name: str) -> Entry:
        """A publication's figure; where it is of the same hardware, with what was measured here over it."""
        entry = _filled(CellValues(record, found), cell)
        if entry is None or found is None:
            return NOTHING
        for note in found.notes:
            entry = replace(entry, text=self.notes.mark(entry.text, note, name))
        reached = CellValues(record).value(_figure(cell), "measured")
        if not found.alike(record) or cell.fields[0].source != "published" or not reached or not entry.value:
            return entry
        self.notes.compared = True
        return replace(entry, text=f"{entry.text} ({shaped(reached / entry.value, '.2f')})")

    def _elsewhere(self, row: Row, column: ColumnSpec, cell: Template) -> Entry:
        """What is not measured: the estimator's or a publication's figure for the case of this row, whatever stack that ran on here."""
        there = self.records.where(row.where).records
        if not there:
            return Entry(self._word("missing"))
        record = there[0]
        cases = {workload(each, () if "dtype" in column.where or column.published_only else ("dtype",)) for each in there}
        if len(cases) > 1:
            return self._several(len(cases), there, f"{column.heading}, {row.name}", ("column", "backend"))
        if column.published_only or self.source == "published":
            of = cell if self.source == "published" else cell.sourced("published")
            return _filled(CellValues(record, self._publication(record, column, row.device)), of) or Entry(self._word("unknown"))
        changes: dict[str, Any] = {name: values[0] for name, values in column.where.items() if name != "column"}
        said = estimated(record, column.stack or "", {"quantize": None, **changes})
        numbers = [None if said is None or each.figure is None else each.figure.of(said) for each in cell.fields]
        known = tuple(number for number in numbers if number is not None)
        return Entry(cell.text(known), known[0]) if len(known) == len(numbers) else Entry(self._word("unknown"))

    def _ratio(self, row: Row, column: ColumnSpec, pair: tuple[str, str], cell: Template) -> Entry:
        """One column's figures over another's. What was measured apart is not compared."""
        name = f"{column.heading or ' / '.join(pair)}, {row.name}"
        found = [self._one({**row.where, **column.where, "column": (each,)}, name) for each in pair]
        records = [each for each in found if isinstance(each, Record)]
        if len(records) != 2 or (self._measures and any(each.status != "ok" for each in records)):
            return Entry(self._word("unknown") if any(not isinstance(each, Entry) or each.text for each in found) else "")
        apart = Origin.of(records[0]).apart(Origin.of(records[1]))
        if apart is not None and self._measures:
            return Entry(self.notes.mark("-", f"no ratio: {pair[0]} and {pair[1]} were measured {apart}", name))
        said = [self._publication(record, self._named(each), None) for record, each in zip(records, pair, strict=True)]
        if len({each.device for each in said if each is not None}) > 1:
            return NOTHING
        upper, lower = (CellValues(record, each) for record, each in zip(records, said, strict=True))
        numbers = [(upper.of(each), lower.of(each)) for each in cell.fields]
        ratios = tuple(over / under for over, under in numbers if over is not None and under)
        if len(ratios) != len(numbers):
            return Entry(self._word("unknown"))
        quotient = replace(cell, fields=tuple(replace(each, shape=each.shape or ".3f") for each in cell.fields))
        return Entry(quotient.text(ratios), ratios[0])

    def _named(self, name: str) -> ColumnSpec:
        """The column of this table that shows a column of the study."""
        return next((each for each in self.spec.columns if each.where.get("column") == (name,)), ColumnSpec(heading=name))

    def _publication(self, record: Record, column: ColumnSpec, device: str | None) -> Published | None:
        """The publication's figures of a record: of `device`, else of the record's own if it has that, else of the first that it has."""
        if self.source != "published" and not column.published_only:
            return None
        spec: PublishedSpec | None = column.published or (self.spec.published if isinstance(self.spec, TableSpec) else None)
        found = () if spec is None else published(record, spec, device=device)
        chosen = next((each for each in found if each.device == record.device), next(iter(found), None))
        if chosen is not None:
            self.notes.published.append(chosen)
        return chosen


def _filled(values: CellValues, cell: Template) -> Entry | None:
    """The cell with its numbers, None where one of them is not known."""
    numbers = [values.of(each) for each in cell.fields]
    known = tuple(number for number in numbers if number is not None)
    return Entry(cell.text(known), known[0]) if len(known) == len(numbers) else None


def _figure(cell: Template) -> Figure:
    figure = cell.fields[0].figure
    if figure is None:
        raise TypeError("a cell whose figure is not resolved")
    return figure
