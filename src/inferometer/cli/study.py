"""`inferometer study`: sets of cases over several stacks, with the tables and plots that are made of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Protocol

from inferometer.cli import study_list, study_run, study_show


class Action(Protocol):
    """An action's module."""

    SUMMARY: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


ACTIONS: Mapping[str, Action] = {"list": study_list, "run": study_run, "show": study_show}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    for name, module in ACTIONS.items():
        summary = module.SUMMARY
        module.configure(actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."))


def run(arguments: argparse.Namespace) -> int:
    """The exit code of the action."""
    return ACTIONS[arguments.action].run(arguments)
