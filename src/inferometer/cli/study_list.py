"""`inferometer study list`: the studies that come with the package."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.bench.study.file import StudyFile
    from inferometer.bench.study.study import Study

SUMMARY = "list the studies that come with the package"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the action's arguments."""
    parser.add_argument("--json", action="store_true", help='print {"studies": [...]} instead of a table')


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0."""
    from inferometer.bench.study.library import shipped
    from inferometer.report.markup.markdown import table

    files = shipped()
    if arguments.json:
        json.dump({"studies": [_values(file) for file in files.values()]}, sys.stdout, indent=2)
        print()
        return 0
    rows = [_row(file) for file in files.values()]
    print(table(("study", "document", "what it is", "cases", "minutes on one H100"), rows))
    print("\n`inferometer study show NAME` tells more of one, `inferometer study run NAME --dry-run` what it would do here.")
    return 0


def _values(file: StudyFile) -> dict[str, Any]:
    study = file.study()
    return {
        "name": study.name,
        "document": study.document,
        "title": study.title,
        "summary": study.summary,
        "cases": {scale: _cases(file.study(scale)) for scale in file.scales},
        "gpu_minutes": study.gpu_minutes,
    }


def _row(file: StudyFile) -> tuple[str, ...]:
    study = file.study()
    minutes = "" if study.gpu_minutes is None else f"{study.gpu_minutes:g}"
    return (study.name, study.document or "", study.title, str(_cases(study)), minutes)


def _cases(study: Study) -> int:
    return sum(1 for _ in study.cells())
