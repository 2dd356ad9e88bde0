"""What is made of a study's records: the tables of its document, and the page."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.record import Record
from inferometer.bench.study import Study
from inferometer.bench.study_folder import TABLES, StudyFolder
from inferometer.report.study_tables import document


def write_documents(study: Study, records: Sequence[Record], folder: StudyFolder) -> str:
    """Writes the tables and the page into the folder, and returns the tables. Raises OSError where they cannot be written."""
    text = document(study, records)
    folder.write(TABLES, text)
    return text
