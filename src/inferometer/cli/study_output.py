"""What is made of a study's records: the tables of its document with their plots, and the page with both."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.bench.study.folder import PAGE, TABLES, StudyFolder
from inferometer.bench.study.study import Study
from inferometer.report.page.page import page
from inferometer.report.study.plots import plots
from inferometer.report.study.tables import document, document_format, document_parts


def write_documents(study: Study, records: Sequence[Record], folder: StudyFolder) -> str:
    """Writes the tables, their plots and the page into the folder, and returns the tables in Markdown.

    Where the document is reStructuredText, they are there in that too. Without records there is no page. Raises OSError where the files
    cannot be written.
    """
    images = plots(study, records)
    for name, (_, image) in images.items():
        folder.write(name, image)
    titles = {name: title for name, (title, _) in images.items()}
    text = document(study, records, images=titles)
    folder.write(TABLES, text)
    if document_format(study) == "rst":
        folder.write("tables.rst", document(study, records, format="rst", images=titles))
    if records:
        folder.write(PAGE, study_page(study, records))
    return text


def study_page(study: Study, records: Sequence[Record], *, title: str | None = None, remarks: Sequence[str] = ()) -> str:
    """The page of records that a study gave, with the study's tables and plots in it; columns in the study's order, whatever the records
    are in, so that one has the same colour in all plots. Raises what `page` and `plots` do.
    """
    images = [image for _, image in plots(study, records).values()]
    parts = document_parts(study, records)
    ordered = sorted(records, key=lambda record: _place(study, record))
    return page(ordered, title=title or study.title, study=parts, plots=images, remarks=remarks)


def _place(study: Study, record: Record) -> tuple[int, int]:
    """Of the record's part in the study, and of its column there; what the study does not know comes last."""
    for number, part in enumerate(study.parts):
        if part.name == record.part:
            names = [column.name for column in part.columns]
            return number, names.index(record.column) if record.column in names else len(names)
    return len(study.parts), 0
