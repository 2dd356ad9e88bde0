"""Readers of single TOML values, each with an error that names the key and the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from inferometer.errors import UserError, shown

_Word = TypeVar("_Word", bound=str)


class Table:
    """One TOML table that remembers where it stands and which keys were read, so that a misspelt key is an error and not a silence."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def error(self, message: str) -> UserError:
        """The error to raise for something wrong in this table."""
        return UserError(f"{self._where}: {message}")

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        self._read.add(key)
        return key in self._values

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self._take(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"{key} must be a string that is not empty, not {shown(value)}")
        return value

    def number(self, key: str) -> float:
        """A positive number."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(f"{key} must be a positive number, not {shown(value)}")
        return value

    def count(self, key: str) -> int:
        """A positive whole number."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} must be a positive whole number, not {shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def one_of(self, key: str, words: tuple[_Word, ...]) -> _Word:
        """One of the words that the key may have."""
        value = self.text(key)
        for word in words:
            if word == value:
                return word
        raise self.error(f"{key} must be one of {', '.join(words)}, not {shown(value)}")

    def optional_text(self, key: str) -> str | None:
        """A string that is not empty; None if absent."""
        return self.text(key) if self.has(key) else None

    def optional_flag(self, key: str) -> bool:
        """True or false; false if absent."""
        return self.flag(key) if self.has(key) else False

    def value(self, key: str) -> Any:
        """Whatever is there, for a key that may hold values of several types."""
        return self._take(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        if not self.has(key):
            return ()
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error(f"{key} must be a list of strings, not {shown(value)}")
        return tuple(value)

    def table(self, key: str) -> Table:
        """A table inside this one; empty if absent."""
        value = self._take(key) if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, not {shown(value)}")
        return Table(value, f"{self._where}: {key}")

    def tables(self, key: str) -> list[Table]:
        """A list of tables; empty if absent."""
        if not self.has(key):
            return []
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(f"{key} must be a list of tables, not {shown(value)}")
        return [Table(item, f"{self._where}: {key}[{index}]") for index, item in enumerate(value)]

    def inner(self, key: str, index: int, values: Mapping[str, Any]) -> Table:
        """A table that stands at a place of the list `key`."""
        return Table(values, f"{self._where}: {key}[{index}]")

    def names(self) -> tuple[str, ...]:
        """All keys of the table."""
        return tuple(self._values)

    def finish(self) -> None:
        """Raise UserError if a key of the table was never asked for."""
        unknown = [key for key in self._values if key not in self._read]
        if unknown:
            raise self.error(f"unknown key {shown(unknown[0])}; known keys are {', '.join(sorted(self._read))}")

    def _take(self, key: str) -> Any:
        if not self.has(key):
            raise self.error(f"{key} is missing")
        return self._values[key]
