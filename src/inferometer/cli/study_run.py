"""`inferometer study run`: runs a study's cases, or says what that would take, and makes its tables and page."""

from __future__ import annotations

import argparse
from pathlib import Path

from inferometer.bench.study.scale import FULL
from inferometer.cli.options import add_tuning_option, at_least, positive_number

SUMMARY = "run a study's cases, or say what that would take"
FOLDER = Path("inferometer-studies")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the action's arguments."""
    parser.add_argument("study", metavar="NAME_OR_FILE", help="a study by its name, or a TOML file of your own")
    cases = parser.add_argument_group("cases")
    cases.add_argument("--scale", default=FULL, metavar="tiny|full", help="tiny: every table in minutes on any machine (default: full)")
    cases.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME|SETTING=VALUE",
        help="a part or a column by name, or cases with a value, as in --only batch_size=1,8; repeatable",
    )
    cases.add_argument("--runs", type=at_least(1), metavar="N", help="measured runs of each case (default: the study's)")
    cases.add_argument("--no-energy", action="store_true", help="do not repeat each phase for two seconds to read its energy")
    add_tuning_option(cases, default=None, meaning="the study's, or 60")
    cases.add_argument("--find-edge", action="store_true", help="then look for the largest batch of each column that fits")
    where = parser.add_argument_group("where, and within what")
    where.add_argument("--device", metavar="auto|cpu|cuda[:N]", help="where to run (default: the first GPU, else the CPU)")
    where.add_argument("--gpu-memory", type=positive_number, metavar="GIB", help="most memory that a case may take on its device")
    where.add_argument("--timeout-seconds", type=positive_number, metavar="S", help="a case's time limit (default: from its forecast)")
    where.add_argument(
        "--budget-minutes", type=positive_number, metavar="M", help="begin no case after that, but one; --resume runs the rest"
    )
    where.add_argument("--isolate", action="store_true", help="a process for each case (default: for each column)")
    output = parser.add_argument_group("output")
    output.add_argument("--dry-run", action="store_true", help="print the cases with expected time, memory and status, and run nothing")
    output.add_argument("-o", dest="folder", type=Path, metavar="DIR", help=f"where to write (default: {FOLDER}/NAME)")
    output.add_argument("--resume", action="store_true", help="go on with what is in DIR; nothing is measured twice")
    output.add_argument("--json", action="store_true", help='print {"records": [...]}, or {"cases": [...]} of a dry run, instead of tables')


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, 3 if any case ended oom, error or timeout, or 1 if the records could not be kept."""
    from inferometer.cli.study_work import carry_out

    return carry_out(arguments)
