"""The errors that end in one line which says what to do: those that a user can cause, and those of machines."""

from __future__ import annotations


class UserError(Exception):
    """Wrong usage or an impossible request; the command line prints its one line and exits with 2.

    The message names what was wrong and the remedy, without a line break.
    """


class ModelError(UserError):
    """A model that cannot be found, read or run exactly: unknown name, unsupported option, broken file."""


class RunError(UserError):
    """What fails on the way though it was asked rightly, as when a disk fills up; the command line prints its one line and exits with 1."""


class PointlessWarning(UserWarning):
    """What was asked for works and helps nobody; the command line prints it as one line."""
