"""`inferometer validate`: how far predictions are from measurements, by regime, beside simpler rules and the gates."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inferometer.cli.options import svg_file
from inferometer.cli.streams import tell
from inferometer.errors import UserError
from inferometer.estimate.measured import load_regimes

FORMATS = ("markdown", "json", "csv")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--regime", metavar="NAME", help=f"one regime only: {', '.join(load_regimes())} (default: all)")
    parser.add_argument("--rows", action="store_true", help="every row: measured, predicted, fitted or held out, source")
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        metavar="RECORDS",
        help="judge by these instead of published figures: files that `bench --output` wrote, or folders of `study run`",
    )
    parser.add_argument("--format", choices=FORMATS, default="markdown", help="of what is printed (default: markdown); csv is of rows")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--plot", type=svg_file, metavar="FILE.svg", help="also write predicted over measured, by regime, as an SVG image")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, whether gates hold or not."""
    if arguments.json and arguments.format == "csv":
        raise UserError("--json and --format csv contradict each other; leave one out")
    wanted = "json" if arguments.json else arguments.format
    if arguments.records is not None:
        return _records(arguments, wanted)

    from inferometer.estimate.explanation import explain
    from inferometer.estimate.operations import series
    from inferometer.estimate.validation import validate
    from inferometer.report.estimates.validation import document, legend, regime_table, row_table, rows_csv, to_json

    reports = validate(arguments.regime)
    if arguments.plot is not None:
        from inferometer.cli.estimate_plot import write
        from inferometer.report.plots.kinds import error_scatter

        write(arguments.plot, error_scatter(reports))
    if wanted == "json":
        _dump(to_json(reports, rows=arguments.rows))
    elif wanted == "csv":
        sys.stdout.write(rows_csv(reports))
    elif arguments.rows and arguments.regime is None:
        print(document(reports, operations=series(), explained=explain(reports)), end="")
    else:
        print("\n\n".join([regime_table(reports), legend(reports), *map(row_table, reports if arguments.rows else ())]))
    return 0


def _records(arguments: argparse.Namespace, wanted: str) -> int:
    for flag, given in (("--regime", arguments.regime is not None), ("--rows", arguments.rows), ("--plot", arguments.plot is not None)):
        if given:
            raise UserError(f"{flag} is of the published rows; leave it out with --records, which prints every record")
    if wanted == "csv":
        raise UserError("--format csv is of the published rows; with --records use markdown or json")

    from inferometer.bench.prediction.hindsight import review
    from inferometer.report.estimates.hindsight import document, to_json
    from inferometer.report.records.gathering import gather

    gathered = gather(arguments.records)
    for remark in gathered.remarks:
        tell(f"warning: {remark}")
    found = review(gathered.records)
    if wanted == "json":
        _dump(to_json(found))
    else:
        print(document(found), end="")
    return 0


def _dump(value: Any) -> None:
    json.dump(value, sys.stdout, allow_nan=False, indent=2)
    print()
