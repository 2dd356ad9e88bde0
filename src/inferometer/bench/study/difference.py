"""What differs between two resolved studies, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from inferometer.errors import shown

_MOST: Final = 6
# Tables of settings, whose keys alone say enough.
_SETTINGS: Final = ("fixed", "axes")
_LISTS: Final = ("part", "columns")


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The keys whose values differ, those of a part or column behind its name, with both values where they are plain; "" for none."""
    found = list(dict.fromkeys(_differing(before, now, "")))
    more = len(found) - _MOST
    return ", ".join(found[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        old_names, new_names = _named(old), _named(new)
        if key in _SETTINGS and isinstance(old or {}, Mapping) and isinstance(new or {}, Mapping):
            yield from _differing(old or {}, new or {}, where)
        elif key in _LISTS and old_names is not None and new_names is not None:
            for name in dict.fromkeys((*old_names, *new_names)):
                if name not in old_names or name not in new_names:
                    yield f"{where}{name} ({'only now' if name in new_names else 'no longer'})"
                else:
                    yield from _differing(old_names[name], new_names[name], f"{where}{name}.")
        elif isinstance(old, Mapping | list) or isinstance(new, Mapping | list):
            yield f"{where}{key}"
        else:
            yield f"{where}{key} ({_value(old)}, now {_value(new)})"


def _named(value: Any) -> dict[str, Mapping[str, Any]] | None:
    """Tables by their names; None where it is no list of such."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in value):
        return None
    return {each["name"]: each for each in value}


def _value(value: Any) -> str:
    return "none" if value is None else shown(value) if isinstance(value, str) else str(value).lower()
