"""One table of a study as rows of text: as measured, or the same rows and columns from another source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferometer.bench.study.cell import Source
from inferometer.bench.study.layout import BlockSpec, ColumnSpec, TableSpec
from inferometer.report.markup.parts import Grid, bold
from inferometer.report.study.columns import Row, columns_of, heading_of, rows_in
from inferometer.report.study.entries import Entries, Entry
from inferometer.report.study.footnotes import Footnotes
from inferometer.report.study.part_records import PartRecords


@dataclass(frozen=True, slots=True)
class _Filled:
    """A block (None for a table without) and its lines of cells."""

    block: BlockSpec | None
    lines: tuple[tuple[Entry, ...], ...]

    @property
    def empty(self) -> bool:
        return not any(entry.text for line in self.lines for entry in line)


def grid_of(spec: TableSpec, records: PartRecords, source: Source, notes: Footnotes) -> Grid | None:
    """The table of these records; None where no cell of it has anything to show. Footnotes of its cells go into `notes`."""
    columns, rows = columns_of(spec, records, source), rows_in(spec, records, source)
    entries = Entries(spec, records, source, notes)
    blocks: Sequence[BlockSpec | None] = spec.blocks or (None,)
    made = [_Filled(block, tuple(tuple(entries.entry(row, column, block) for column in columns) for row in rows)) for block in blocks]
    shown = [each for each in made if not each.empty]
    if not shown:
        return None
    if source != "measured":
        # A source that says nothing of a column, as a bound of memory, has no such column.
        kept = [index for index in range(len(columns)) if any(line[index].text for each in shown for line in each.lines)]
        columns = tuple(columns[index] for index in kept)
        shown = [_Filled(each.block, tuple(tuple(line[index] for index in kept) for line in each.lines)) for each in shown]
    if spec.best is not None and source == "measured":
        shown = [_marked(each, spec.best == "high") for each in shown]
    return _headed(spec, columns, rows, shown) if spec.block_headings else _labelled(spec, columns, rows, shown)


def _labelled(spec: TableSpec, columns: Sequence[ColumnSpec], rows: Sequence[Row], shown: Sequence[_Filled]) -> Grid:
    """Blocks named in their first row; headings in two lines where columns are grouped."""
    start = [*([] if spec.label is None else [spec.label]), *(row.heading for row in spec.rows)]
    names = [heading_of(column) for column in columns]
    body = []
    grouped = any(column.group for column in columns)
    if grouped:
        body.append((*[""] * len(start), *names))
    for each in shown:
        for place, (row, line) in enumerate(zip(rows, each.lines, strict=True)):
            name = each.block.label if each.block is not None and not place else ""
            body.append((*([] if spec.label is None else [name]), *row.labels, *(entry.text for entry in line)))
    return Grid((*start, *([column.group or "" for column in columns] if grouped else names)), tuple(body))


def _headed(spec: TableSpec, columns: Sequence[ColumnSpec], rows: Sequence[Row], shown: Sequence[_Filled]) -> Grid:
    """Blocks one under the other, each with a line of headings, an empty line between them."""
    lines: list[tuple[str, ...]] = []
    for place, each in enumerate(shown):
        label = each.block.label if each.block is not None else ""
        names = ["" if column.blocks and label not in column.blocks else heading_of(column) for column in columns]
        start = ["" if place else row.heading for row in spec.rows]
        if place:
            lines.append(("",) * (1 + len(start) + len(names)))
        lines.append((label, *start, *names))
        lines += [("", *row.labels, *(entry.text for entry in line)) for row, line in zip(rows, each.lines, strict=True)]
    return Grid(lines[0], tuple(lines[1:]))


def _marked(filled: _Filled, highest: bool) -> _Filled:
    values = [entry.value for line in filled.lines for entry in line if entry.value is not None]
    best = (max if highest else min)(values, default=None)
    if best is None or values.count(best) > 1:
        return filled
    lines = (tuple(replace(e, text=bold(e.text)) if e.value == best else e for e in line) for line in filled.lines)
    return _Filled(filled.block, tuple(lines))
