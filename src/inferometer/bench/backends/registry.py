"""Backends by name: those that come with the package, and those that other packages registered as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final

from inferometer.bench.backends.entries import ENTRIES
from inferometer.bench.backends.entry import BackendEntry
from inferometer.errors import UserError

GROUP: Final = "inferometer.backends"

# Known without the package's metadata, which a source tree that is run from has not.
_OWN: Final[Mapping[str, BackendEntry]] = MappingProxyType({entry.name: entry for entry in ENTRIES})


@cache
def names() -> tuple[str, ...]:
    """Every backend that can be named: ours in their order, then those of other packages."""
    others = sorted({point.name for point in entry_points(group=GROUP)} - set(_OWN))
    return (*_OWN, *others)


@cache
def entry(name: str) -> BackendEntry:
    """The backend of that name. Raises UserError for an unknown one, and for one whose package does not give an entry."""
    if name in _OWN:
        return _OWN[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _loaded(name, point.load, point.value)
    raise UserError(f"--backend {name} is unknown; use {' or '.join(names())}")


def stack_of(backend: str) -> str | None:
    """How the estimator prices that backend; None for one it has no stack for, or that is not known here (any more)."""
    try:
        return entry(backend).stack
    except UserError:
        return None


def _loaded(name: str, load: object, value: str) -> BackendEntry:
    try:
        found = load()  # type: ignore[operator]
    except Exception as error:
        raise UserError(f"--backend {name}: {value} cannot be loaded ({type(error).__name__}: {error}); reinstall its package") from error
    if not isinstance(found, BackendEntry) or found.name != name:
        raise UserError(f"--backend {name}: {value} is no backend entry of that name; reinstall its package")
    return found
