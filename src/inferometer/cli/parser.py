"""The parser of the command line, and of each command."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from inferometer.errors import UserError


class Once(argparse.Action):
    """Keeps an option's value, and refuses a second one: of two, argparse would silently take the last."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        assert isinstance(parser, Parser), "registered by Parser alone"
        if option_string is not None:
            if self.dest in parser.given:
                together = f"put all its values behind one {option_string}" if self.nargs == "+" else "leave one out"
                raise UserError(f"{option_string} is given twice; {parser.prog} takes one: {together}")
            parser.given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse, but for three rules: an error is a UserError instead of the usage text and an exit, no option may be abbreviated, and an
    option with a value is given once, unless its action is "append". A switch that is given twice says the same thing twice.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        self.given: set[str] = set()
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        for action in (None, "store"):
            self.register("action", action, Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but for what is not known, which is an error of this parser: a command's, and not of the one above it."""
        self.given.clear()
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            rows = [action.metavar for action in self._get_positional_actions() if action.nargs == "*"]
            dashed = unknown[0].startswith("-")
            together = f"one {rows[0]} stands beside the other" if rows and not dashed else ""
            behind = f"a {rows[0]} that begins with a dash comes last, behind --" if rows and dashed else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f' ({together or behind})' if rows else ''}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raises UserError."""
        message = message.removeprefix("argument ")
        option, colon, lacks = message.partition(": ")
        if colon and lacks == "expected one argument":  # which argparse says as well of one that it takes for an option
            message += f" (one that begins with a dash goes behind {option.split('/')[-1]}=)"
        raise UserError(f"{message}; see {self.prog} --help")
