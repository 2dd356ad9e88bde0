"""How a scale changes a part of a study, both as plain values read from TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FULL: Final = "full"
"""The scale that is the file as it stands, unless it says otherwise."""


def scaled(part: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A part as a scale changes it: settings and axes one by one, columns and exclusions as a whole."""
    made = {**part, **change}
    for key in ("fixed", "axes"):
        if key in part or key in change:
            made[key] = {**part.get(key, {}), **change.get(key, {})}
    return made


def several(value: Any) -> tuple[Any, ...]:
    """The values of a key that takes one or a list of them."""
    return tuple(value) if isinstance(value, list) else (value,)
