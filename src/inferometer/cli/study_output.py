"""What is made of a study's records: the tables of its document with their plots, and the page."""

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
        folder.write(PAGE, page(records, title=study.title, study=document_parts(study, records)))
    return text
