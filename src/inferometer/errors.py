"""The errors a user can cause, each one line that says what to do."""

from __future__ import annotations


class UserError(Exception):
    """Wrong usage or an impossible request; the command line prints its one line and exits with 2.

    The message names what was wrong and the remedy, without a line break.
    """


class ModelError(UserError):
    """A model that cannot be found, read or run exactly: unknown name, unsupported option, broken file."""


class PointlessWarning(UserWarning):
    """What was asked for works and helps nobody; the command line prints it as one line."""
