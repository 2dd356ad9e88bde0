"""A study's records as the tables of its document: measured, predicted, at the hardware's bound, and as they were published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from inferometer.bench.record import Record
from inferometer.bench.study import Study
from inferometer.bench.study_cell import BESIDE, Source
from inferometer.bench.study_layout import TableSpec
from inferometer.bench.study_table import table_of
from inferometer.report.document_notes import notes_on
from inferometer.report.footnotes import Footnotes
from inferometer.report.launcher_arguments import launcher_arguments
from inferometer.report.origin import Origin, mixture
from inferometer.report.part_records import PartRecords
from inferometer.report.parts import Bullets, Format, Grid, Heading, Image, Paragraph, Part, joined, written
from inferometer.report.published_figures import Published
from inferometer.report.study_grid import grid_of
from inferometer.report.tables import parameter_rows

_SECTION, _TITLE, _SMALL = 2, 3, 4


def document(study: Study, records: Iterable[Record], *, format: Format = "md", images: Mapping[str, str] | None = None) -> str:  # noqa: A002
    """The study's tables in the layout that its file gives them, each beside its prediction, its bound and what was published.

    images: the titles of plots that lie beside the report, by their file names. Raises ValueError for a table that the study's file
    describes wrongly, naming the key.
    """
    mine = [record for record in records if record.study in (None, study.name)]
    specs = [table_of(values) for values in study.tables]
    parts: list[Part] = [Heading(1, study.title), *_card(study, mine)]
    empty, section = [], None
    for spec in specs:
        made = _table(study, spec, PartRecords.of(study, spec.part, mine))
        if not made:
            empty.append(spec.title if spec.section is None else f"{spec.section}, {spec.title}")
            continue
        if spec.section is not None and spec.section != section:
            parts.append(Heading(_SECTION, spec.section))
        section = spec.section or section
        parts += [Heading(_TITLE, spec.title), *made]
    if empty:
        parts += [Heading(_SECTION, "Tables without records"), Bullets(tuple(empty))]
    if images:
        parts += [Heading(_SECTION, "Plots"), *(Image(path, title) for path, title in images.items())]
    claims = () if study.document is None else notes_on(study.document)
    if claims:
        parts += [Heading(_SECTION, f"What is wrong in the published tables (document {study.document})"), Bullets(claims)]
    return written(parts, format)


def _card(study: Study, records: Sequence[Record]) -> list[Part]:
    """What the study is, what it takes, and what there is of it."""
    lines = []
    if study.document is not None:
        lines.append(f"Reproduces the tables of document {study.document}.")
    if study.gpu_minutes is not None:
        lines.append(f"Takes about {study.gpu_minutes:g} GPU minutes on one H100 of 80 GB.")
    counts = Counter(record.status for record in records)
    lines.append("Cases: " + (", ".join(f"{count} {status}" for status, count in counts.most_common()) or "none yet") + ".")
    origins = dict.fromkeys(Origin.of(record) for record in records)
    lines += ["Measured on " + ", ".join(each for each in (origin.machine, _named(origin)) if each) + "." for origin in origins]
    mixed = mixture(records)
    if mixed is not None:
        lines.append(f"This study {mixed}.")
    lines.append(
        "Predictions are the estimator's, made before each case ran; bounds are the least time in which the device can do the work. "
        "Every table that follows stands once as measured, then from each of these."
    )
    return [*([] if study.summary is None else [Paragraph(study.summary)]), Bullets(tuple(lines))]


def _named(origin: Origin) -> str:
    known = {"session": origin.session, "revision": origin.revision}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)


def _table(study: Study, spec: TableSpec, part: PartRecords) -> list[Part]:
    """One table with all that stands beside it; nothing without records."""
    records = part.where(spec.where)
    if not records.records:
        return []
    if spec.kind == "launcher":
        return [*launcher_arguments(study.name, records, _SMALL), *_notes(spec, Footnotes(), None)]
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
            made += [Paragraph(_caption(records.records, BESIDE[name], said.published)), beside]
    return made


def _notes(spec: TableSpec, notes: Footnotes, mixed: str | None) -> list[Part]:
    lines = (*notes.lines(), *([] if mixed is None else [mixed]), *spec.notes)
    return [Bullets(lines)] if lines else []


def _caption(records: Sequence[Record], source: Source, publications: Sequence[Published]) -> str:
    """What a repeated table shows; `publications` are those that it has figures from."""
    if source == "predicted":
        return "Predicted for the same device. In brackets: measured over predicted."
    if source == "bound":
        basis = sorted({record.bound.basis for record in records if record.bound is not None and record.bound.basis})
        limits = f" ({joined(basis)} limits)" if basis else ""
        return f"The least that this device needs{limits}. In brackets: the share of it that was reached, and what binds."
    where = joined(list(dict.fromkeys(each.where for each in publications)))
    alike = any(each.alike(record) for each in publications for record in records)
    rest = (
        "the same hardware. In brackets: measured here over published." if alike else "not the hardware of this run, so no ratio is formed."
    )
    sources = joined(list(dict.fromkeys(source for each in publications for source in each.sources)))
    return f"Published on {where}: {rest} From {sources}."
