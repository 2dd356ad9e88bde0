"""A study's records as the tables of its document: measured, predicted, at the hardware's bound, and as they were published."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from inferometer.bench.records.record import Record
from inferometer.bench.study.cell import BESIDE, Source
from inferometer.bench.study.layout import TOTAL_LENGTH, TableSpec
from inferometer.bench.study.study import Study
from inferometer.bench.study.table import table_of
from inferometer.report.markup.parts import Bullets, Format, Grid, Heading, Image, Paragraph, Part, joined, written
from inferometer.report.records.origin import Origin, mixture, origins_of
from inferometer.report.study.columns import apart, heading_of
from inferometer.report.study.document_notes import notes_on
from inferometer.report.study.footnotes import Footnotes
from inferometer.report.study.grid import grid_of
from inferometer.report.study.launcher_arguments import launcher_arguments
from inferometer.report.study.part_records import PartRecords
from inferometer.report.tables.benchmark import parameter_rows

_SECTION = 2
# Documents that are not Markdown.
_RESTRUCTURED = ("001",)


def document(study: Study, records: Iterable[Record], *, format: Format = "md", images: Mapping[str, str] | None = None) -> str:  # noqa: A002
    """The study's tables in the layout that its file gives them, each beside its prediction, its bound and what was published.

    images: the titles of plots that lie beside the report, by their file names. Raises ValueError for a table that the study's file
    describes wrongly, naming the key.
    """
    return written(document_parts(study, records, images=images), format)


def document_parts(study: Study, records: Iterable[Record], *, images: Mapping[str, str] | None = None) -> list[Part]:
    """What `document` writes. Raises what it does."""
    mine = [record for record in records if record.study in (None, study.name)]
    parts: list[Part] = [Heading(1, study.title), *_card(study, mine)]
    empty: list[str] = []
    found: dict[str | None, dict[str, list[Part]]] = {}
    for spec in (table_of(values) for values in study.tables):
        part = PartRecords.of(study, spec.part, mine)
        each = [one for one in apart(spec, part) if _add(found, one, _table(study, one, part))]
        if not each:
            empty.append(_asked(study, spec))
    for section, titles in found.items():
        parts += [] if section is None else [Heading(_SECTION, section)]
        for title, made in titles.items():
            parts += [Heading(_level(section), title), *made]
    if empty:
        parts += [Heading(_SECTION, "Tables without records"), Bullets(tuple(dict.fromkeys(empty)))]
    if images:
        parts += [Heading(_SECTION, "Plots"), *(Image(path, title) for path, title in images.items())]
    claims = () if study.document is None else notes_on(study.document)
    if claims:
        parts += [Heading(_SECTION, f"What is wrong in the published tables (document {study.document})"), Bullets(claims)]
    return parts


def _asked(study: Study, spec: TableSpec) -> str:
    """What a table without records is called: in place of a setting that splits it, the values that the study asks for."""
    cells = [
        {
            **cell.settings,
            "column": cell.column,
            TOTAL_LENGTH: cell.settings.get("sequence_length", 0) + cell.settings.get("decode_length", 0),
        }
        for cell in study.cells()
        if cell.part == spec.part
    ]

    def values(match: re.Match[str]) -> str:
        asked = [cell.get(match[1]) for cell in cells]
        return " / ".join(dict.fromkeys(str(value) for value in asked if value is not None)) or "..."

    return re.sub(r"\{(\w+)\}", values, spec.title if spec.section is None else f"{spec.section}, {spec.title}")


def _level(section: str | None) -> int:
    """Of a table's title: below its section, or where sections stand."""
    return _SECTION if section is None else _SECTION + 1


def document_format(study: Study) -> Format:
    """What the document that the study reproduces is written in; Markdown for a study of no document."""
    return "rst" if study.document in _RESTRUCTURED else "md"


def _add(found: dict[str | None, dict[str, list[Part]]], spec: TableSpec, made: Sequence[Part]) -> bool:
    """Puts a table under its headings, tables of the same ones together; whether there was anything to put."""
    if made:
        found.setdefault(spec.section, {}).setdefault(spec.title, []).extend(made)
    return bool(made)


def _card(study: Study, records: Sequence[Record]) -> list[Part]:
    """What the study is, what it takes, and what there is of it."""
    lines = []
    if study.document is not None:
        lines.append(f"Reproduces the tables of document {study.document}.")
    if study.gpu_minutes is not None:
        lines.append(f"Takes about {study.gpu_minutes:g} GPU minutes on one H100 of 80 GB.")
    models = list(dict.fromkeys(record.model for record in records))
    lines += [f"Ran: {joined(models)}."] if models else []
    counts = Counter(record.status for record in records)
    lines.append("Cases: " + (", ".join(f"{count} {status}" for status, count in counts.most_common()) or "none yet") + ".")
    lines += [
        f"Measured on {', '.join(each for each in (one.machine, _named(one), _began(one, records)) if each)}."
        for one in origins_of(records)
    ]
    mixed = mixture(records)
    if mixed is not None:
        lines.append(f"This study {mixed}.")
    lines.append(
        "Every table stands once as measured, then as the estimator predicts it, at the least time in which the device could do the "
        "work, and as it was published, as far as each is known."
    )
    return [*([] if study.summary is None else [Paragraph(study.summary)]), Bullets(tuple(lines))]


def _began(origin: Origin, records: Sequence[Record]) -> str:
    return min(record.started_at for record in records if Origin.of(record) == origin)[:16].replace("T", " ")


def _named(origin: Origin) -> str:
    known = {"session": origin.session, "revision": origin.revision}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)


def _table(study: Study, spec: TableSpec, part: PartRecords) -> list[Part]:
    """One table with all that stands beside it; nothing without records."""
    records = part.where(spec.where)
    if not records.records:
        return []
    if spec.kind == "launcher":
        return [*launcher_arguments(study.name, records, _level(spec.section) + 1), *_notes(spec, Footnotes(), None)]
    if spec.kind == "parameters":
        return [Grid(("Parameter", "Value"), tuple(parameter_rows(records.records[0]))), *_notes(spec, Footnotes(), None)]
    notes = Footnotes()
    grid = grid_of(spec, records, "measured", notes)
    if grid is None:
        return []
    mixed = mixture(records.records)
    made: list[Part] = [grid, *_notes(spec, notes, None if mixed is None else f"This table {mixed}.")]
    for name in spec.beside:
        said = Footnotes()
        beside = grid_of(spec, records, BESIDE[name], said)
        if beside is not None:
            made += [Paragraph(_caption(records.records, BESIDE[name], said)), beside]
            made += [Bullets(said.lines())] if said.lines() else []
    return made


def _notes(spec: TableSpec, notes: Footnotes, mixed: str | None) -> list[Part]:
    given = [f"{heading_of(column)}: {column.source}." for column in spec.columns if column.source is not None]
    lines = (*notes.lines(), *([] if mixed is None else [mixed]), *given, *spec.notes)
    return [Bullets(lines)] if lines else []


def _caption(records: Sequence[Record], source: Source, said: Footnotes) -> str:
    """What a repeated table shows; `said` is what its cells told."""
    if source == "predicted":
        return "Predicted for the same device." + " In brackets: measured over predicted." * said.compared
    if source == "bound":
        basis = sorted({record.bound.basis for record in records if record.bound is not None and record.bound.basis})
        limits = f" ({joined(basis)} limits)" if basis else ""
        reached = " In brackets: the share of it that was reached, and what binds." * said.compared
        return f"The least that this device needs{limits}.{reached}"
    where = joined(list(dict.fromkeys(each.where for each in said.published)))
    sources = list(dict.fromkeys(text for each in said.published for text in each.sources))
    common = sources[0] if len(sources) == 1 else _common(sources)
    told = f"Published on {where}: {common}. Rates and sums are worked out from its times."
    if said.compared:
        return f"{told} In brackets: measured here over published, on the same hardware."
    same = any(each.alike(record) for each in said.published for record in records)
    return told if same else f"{told} That is not the hardware of this run, so no ratio is formed."


def _common(sources: Sequence[str]) -> str:
    """The pieces between commas in which all sources agree."""
    pieces = zip(*(text.split(", ") for text in sources), strict=False)
    alike = [first for first, *others in pieces if all(other == first for other in others)]
    return ", ".join(alike) or joined(sources)
