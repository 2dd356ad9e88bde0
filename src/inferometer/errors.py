"""The errors that end in one line which says what to do: those that a user can cause, and those of machines."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_MOST_SHOWN: Final = 80
_LONGEST_PATH: Final = 4096


class UserError(Exception):
    """Wrong usage or an impossible request; the command line prints its one line and exits with 2.

    The message names what was wrong and the remedy, without a line break.
    """


class ModelError(UserError):
    """A model that cannot be found, read or run exactly: unknown name, unsupported option, broken file."""


class RunError(UserError):
    """What fails on the way though it was asked rightly, as when a disk fills up; the command line prints its one line and exits with 1."""


class PointlessWarning(UserWarning):
    """What was asked for works and helps nobody; the command line and the server print it as one line."""


class DamageWarning(UserWarning):
    """Part of a file could not be read and is left out; the command line prints it as one line."""


def shown(value: object, form: Callable[[Any], str] = repr) -> str:
    """`value` as a message quotes it: on one line, in at most 80 characters. form: how it is spelled, if not as Python spells it."""
    try:
        text = " ".join(line.strip() for line in form(value).splitlines())
    except (ValueError, RecursionError):  # a whole number with more digits than Python converts, or nesting deeper than it follows
        return f"a value of type {type(value).__name__} too large to be shown"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def shown_path(path: object) -> str:
    """The name of a file or folder as a message quotes it: on one line, and whole up to what systems allow, as its end tells most."""
    text = repr(str(path))
    return text if len(text) <= _LONGEST_PATH else f"{text[: _LONGEST_PATH - 3]}..."


def warn_in_one_line() -> None:
    """From now on a warning of ours is a line on stderr, without the place in our source that it comes from."""
    for category in (PointlessWarning, DamageWarning):
        warnings.simplefilter("always", category)
    warnings.showwarning = partial(_show, warnings.showwarning)


def _show(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, PointlessWarning | DamageWarning):
        print(f"inferometer: warning: {' '.join(str(message).split())}", file=sys.stderr)
    else:
        otherwise(message, category, *where, **more)
