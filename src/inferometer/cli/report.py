"""`inferometer report`: records as a document or a page, and old records against new ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.cli.options import finite
from inferometer.cli.streams import tell
from inferometer.cli.written_file import write_file
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.bench.records.record import Record

REGRESSED = 3
FORMATS = ("md", "rst", "csv", "html")
_ENDINGS = {".md": "md", ".markdown": "md", ".rst": "rst", ".csv": "csv", ".html": "html", ".htm": "html"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "records", type=Path, nargs="*", metavar="RECORDS", help="files that `bench --output` wrote, or folders of `study run`"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("OLD", "NEW"),
        help="what changed between two files by more than runs scatter; exit code 3 if anything got worse, 2 if they share no case",
    )
    parser.add_argument(
        "--tolerance", type=_percent, metavar="PERCENT", help="with --compare: the smallest change of a time that counts (default: 2)"
    )
    parser.add_argument("--format", choices=FORMATS, help="default: what the name after -o ends in, else md")
    parser.add_argument("--title", metavar="WORDS", help="default: the names of the files")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of the standard output")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 3 if --compare found a regression. Raises UserError if it found nothing to compare."""
    form = _form(arguments.format, arguments.output)
    _keep_records(arguments)
    if arguments.compare is not None:
        if arguments.records:
            raise UserError("--compare takes its two files itself; leave out the other RECORDS")
        return _compare(arguments, form)
    if not arguments.records:
        raise UserError("name at least one file of RECORDS, or two with --compare OLD NEW")
    if arguments.tolerance is not None:
        raise UserError("--tolerance goes with --compare OLD NEW; leave it out")

    from inferometer.report.records.gathering import gather

    gathered = gather(arguments.records)
    title = arguments.title or _names(arguments.records)
    if form == "html":
        text = _page(arguments, gathered.records, gathered.remarks)
    elif form == "csv":
        from inferometer.report.records.record_rows import records_csv

        text = records_csv(gathered.records)
        _warn(gathered.remarks)
    else:
        from inferometer.report.markup.parts import written
        from inferometer.report.tables.summary import summary_parts

        text = written(summary_parts(gathered.records, title=title, remarks=gathered.remarks), "rst" if form == "rst" else "md")
    _write(text, arguments.output)
    return 0


def _page(arguments: argparse.Namespace, records: Sequence[Record], remarks: Sequence[str]) -> str:
    """The page; that of one folder of `study run` has the study's own tables and plots in it."""
    from inferometer.bench.study.folder import STUDY, read_folder
    from inferometer.report.page.page import page

    folder = arguments.records[0]
    if len(arguments.records) == 1 and (folder / STUDY).is_file():
        from inferometer.cli.study_output import study_page

        return study_page(read_folder(folder)[0].study(), records, title=arguments.title, remarks=remarks)
    return page(records, title=arguments.title or _names(arguments.records), remarks=remarks)


def _compare(arguments: argparse.Namespace, form: str) -> int:
    from inferometer.report.compare.comparison import TOLERANCE, compare
    from inferometer.report.compare.document import comparison_parts, rows_csv
    from inferometer.report.records.columns import Columns
    from inferometer.report.records.gathering import gather, mixture

    old, new = (gather([path]) for path in arguments.compare)
    found = compare(old.records, new.records, tolerance=TOLERANCE if arguments.tolerance is None else arguments.tolerance / 100)
    both = [*old.records, *new.records]
    columns = Columns.of(both, by_machine=False)
    remarks = [*old.remarks, *new.remarks, *mixture(both)]
    if form == "csv":
        text = rows_csv(found, columns)
        _warn(remarks)
    else:
        title = arguments.title or " against ".join(_names([path]) for path in arguments.compare)
        parts = comparison_parts(found, columns, title=title, remarks=remarks)
        if form == "html":
            from inferometer.report.page.html_parts import page_of

            text = page_of(parts)
        else:
            from inferometer.report.markup.parts import written

            text = written(parts, "rst" if form == "rst" else "md")
    _write(text, arguments.output)
    if found.empty:
        # A gate that compares two files with nothing in common must not pass.
        raise UserError(
            "--compare OLD NEW: no case that ran is in both; name records of the same cases, alike in column, model and settings"
        )
    return REGRESSED if found.regressed else 0


def _keep_records(arguments: argparse.Namespace) -> None:
    """A report is not written over what it is made of."""
    from inferometer.report.records.gathering import RECORDS

    output = arguments.output
    given = [path / RECORDS if path.is_dir() else path for path in (*arguments.records, *(arguments.compare or ()))]
    if output is not None and any(path.exists() and output.exists() and path.samefile(output) for path in given):
        raise UserError(f"--output {output} holds the records that are read; name another file")


def _form(asked: str | None, output: Path | None) -> str:
    """The format that was asked for, else the one that the file's name ends in. Raises UserError where it ends in no format's."""
    ending = "" if output is None else output.suffix.lower()
    if asked is None and ending and ending not in _ENDINGS:
        raise UserError(f"--output {output}: {ending} is no format; end the name in {', '.join(_ENDINGS)}, or say which with --format")
    return asked or _ENDINGS.get(ending, "md")


def _names(paths: Sequence[Path]) -> str:
    """The files' names without endings; of a folder, its own."""
    return ", ".join(dict.fromkeys(path.resolve().name if path.is_dir() else path.stem for path in paths))


def _warn(remarks: Sequence[str]) -> None:
    """What a table of values has no place for."""
    for remark in remarks:
        tell(f"warning: {remark}")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    # What a failed case said may hold half a character, which no encoding has.
    write_file("--output", output, text.encode("utf-8", "replace"))


def _percent(text: str) -> float:
    value = finite(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a percentage of 0 or more, not {text!r}")
    return value
