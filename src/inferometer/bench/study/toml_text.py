"""TOML as text: where a key stands in it, and values written in it. The standard library reads TOML and does neither."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

Path = Sequence[str | int]
"""Keys and indices from the top: ("part", 1, "axes", "batch_size")."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line_of(text: str, path: Path) -> int | None:
    """The line, counted from 1, on which the statement begins that first gives valid TOML `path`; None if it has no such key.

    Of a value over several lines it is the line of its key.
    """
    lines = text.splitlines()
    begins = 1
    for end in range(1, len(lines) + 1):
        try:
            value: Any = tomllib.loads("\n".join(lines[:end]) + "\n")
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        if _has(value, path):
            return begins
        begins = end + 1
    return None


def _has(value: Any, path: Path) -> bool:
    for key in path:
        there = key < len(value) if isinstance(key, int) and isinstance(value, list) else isinstance(value, dict) and key in value
        if not there:
            return False
        value = value[key]
    return True


def dumps(document: Mapping[str, Any]) -> str:
    """TOML that `tomllib` reads back as `document`: plain values first, then tables, then lists of tables; what is deeper inline.

    Raises TypeError for a value that TOML has no form for, None among them.
    """
    plain = {key: value for key, value in document.items() if not isinstance(value, Mapping) and not _tables(value)}
    parts = ["".join(f"{_key(key)} = {_value(value)}\n" for key, value in plain.items())]
    for key, value in document.items():
        if isinstance(value, Mapping):
            parts.append(f"[{_key(key)}]\n{_entries(value)}")
        elif _tables(value):
            parts += [f"[[{_key(key)}]]\n{_entries(entry)}" for entry in value]
    return "\n".join(part for part in parts if part)


def _tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _entries(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    raise TypeError(f"TOML has no form for {value!r}")
