"""The page: records as one HTML file that asks nobody for anything, with charts, a table that sorts and filters, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.report.markup.html import escaped, scrolling
from inferometer.report.markup.parts import Heading, Part
from inferometer.report.page.case_table import cases_section, columns_table, environment_section, failures_section
from inferometer.report.page.context_figures import context_section
from inferometer.report.page.energy_figures import energy_section
from inferometer.report.page.html_parts import html_of
from inferometer.report.page.memory_figures import memory_section
from inferometer.report.page.prediction_figures import prediction_section
from inferometer.report.page.roofline_figures import roofline_section
from inferometer.report.page.section import Detail, Section
from inferometer.report.page.serving_figures import serving_section
from inferometer.report.page.shell import document
from inferometer.report.page.sweep_figures import batch_section
from inferometer.report.plots.svg import within
from inferometer.report.records.columns import Columns, sweeps
from inferometer.report.records.gathering import mixture
from inferometer.report.records.outlooks import Outlooks
from inferometer.report.tables.summary import about, again


def page(
    records: Sequence[Record],
    *,
    title: str,
    study: Sequence[Part] | None = None,
    plots: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> str:
    """One self-contained HTML document about records; study: the parts of the study's own document, whose tables then stand first.

    plots: the study's own, SVG images. remarks: sentences to stand at the top. What names of models and failed cases say is shown as
    text, whatever it holds. Raises ValueError for no records.
    """
    if not records:
        raise ValueError("a page needs at least one record")
    columns, detail = Columns.of(records), Detail(len(records))
    workloads, outlooks = sweeps(records, columns), Outlooks.of(records)
    latest = [record for sweep in workloads for record in sweep.records]
    served = serving_section(latest, columns)
    sections = [
        *([] if study is None else [_study(study, plots, title)]),
        batch_section(workloads, columns, detail),
        roofline_section(workloads, columns, outlooks, detail),
        prediction_section(latest, columns, detail),
        memory_section(workloads, columns, outlooks, detail),
        context_section(latest, columns, detail),
        energy_section(workloads, columns, detail),
        *([] if served is None else [served]),
        cases_section(records, columns),
        environment_section(records),
        failures_section(records, columns),
    ]
    said = [*remarks, *mixture(records), *again(records, columns)]
    return document(title, _summary(records, columns, said), sections)


def _study(parts: Sequence[Part], plots: Sequence[str], title: str) -> Section:
    """A study's document without its title, which the page has, and its plots, which are seen at a glance, before its tables."""
    kept = [part for part in parts if not (isinstance(part, Heading) and part.level == 1)]
    card = next((place for place, part in enumerate(kept) if isinstance(part, Heading)), len(kept))
    drawn = "".join(f"<figure>{scrolling('Plot')}{within(image)}</div></figure>" for image in plots)
    return Section(
        slug="study",
        title="The study's plots and tables" if plots else "The study's tables",
        content=html_of(kept[:card], name=title) + (f"<div class=plots>{drawn}</div>" if plots else "") + html_of(kept[card:], name=title),
        missing="the study asks for none.",
    )


def _summary(records: Sequence[Record], columns: Columns, remarks: Sequence[str]) -> str:
    said = "".join(f"<p class=remark>{escaped(remark)}</p>" for remark in remarks)
    legend = f"<section id=columns><h2>Columns</h2>{columns_table(records, columns)}</section>"
    return f"<p class=soft>{escaped(about(records))}</p>{said}{legend}"
