"""`inferometer study show`: what a study asks, or what a run of it answered."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.bench.study.scale import FULL

if TYPE_CHECKING:
    from inferometer.bench.study.file import StudyFile
    from inferometer.bench.study.study import Settings, Study

SUMMARY = "tell what a study asks, or print the tables of a folder that a run wrote"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the action's arguments."""
    parser.add_argument("study", metavar="NAME_OR_FILE_OR_DIR", help="a study, or the folder of its run")
    parser.add_argument("--scale", default=FULL, metavar="tiny|full", help="of a study, not of a folder (default: full)")
    parser.add_argument("--format", choices=("md", "rst"), default="md", help="of a folder's tables (default: md)")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0."""
    from inferometer.bench.study.folder import STUDY, latest, read_folder
    from inferometer.bench.study.library import find_study, shipped

    path = Path(arguments.study).expanduser()
    if (path / STUDY).is_file() or (path.is_dir() and arguments.study not in shipped()):
        from inferometer.report.study.tables import document

        file, records = read_folder(path)
        print(document(file.study(), list(latest(records).values()), format=arguments.format), end="")
    else:
        file = find_study(arguments.study)
        print(_card(file, file.study(arguments.scale)))
    return 0


def _card(file: StudyFile, study: Study) -> str:
    from inferometer.report.markup.markdown import table

    lines = [f"# {study.title}", ""]
    if study.summary is not None:
        lines += [study.summary, ""]
    if study.document is not None:
        lines.append(f"- Reproduces the tables of document {study.document}.")
    if study.gpu_minutes is not None:
        lines.append(f"- Takes about {study.gpu_minutes:g} GPU minutes on one H100 of 80 GB.")
    lines += [f"- Cases: {sum(1 for _ in study.cells())}; scales: {', '.join(file.scales)}.", ""]
    rows = []
    for part in study.parts:
        axes = "; ".join(f"{axis.name}: {', '.join(_point(point, axis.name) for point in axis.points)}" for axis in part.axes)
        settings = ", ".join(f"{name} {value}" for name, value in {**study.fixed, **part.fixed}.items())
        for column in part.columns:
            made = ", ".join(f"{name} {value}" for name, value in column.settings.items())
            rows.append((part.name, axes, settings, column.name, made))
            axes = settings = ""
    lines.append(table(("part", "axes", "settings", "column", "its settings"), rows))
    left_out = [(part.name, each) for part in study.parts for each in part.exclusions]
    if left_out:
        lines += ["", "Left out:", ""]
        for name, each in left_out:
            cases = [*([] if each.columns is None else [" or ".join(each.columns)])]
            cases += [f"{key} {' or '.join(map(str, values))}" for key, values in each.where.items()]
            lines.append(f"- {name}, {', '.join(cases)}: {each.reason}")
    return "\n".join(lines)


def _point(point: Settings, axis: str) -> str:
    return str(point[axis]) if set(point) == {axis} else "/".join(str(value) for value in point.values())
