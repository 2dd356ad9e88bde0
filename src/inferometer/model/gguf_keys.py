"""A GGUF file's settings for its architecture, read with their kind and range checked."""

from __future__ import annotations

import struct
from math import isfinite

from inferometer.errors import ModelError, shown
from inferometer.model.gguf_file import GgufArray, GgufFile

_LARGEST_SIZE = 2**31 - 1


class Keys:
    """The metadata under "<architecture>."; every method takes a key without that prefix.

    Raises ModelError, naming the file and the key, for a value that is absent, of another kind, or out of range.
    """

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._prefix = f"{architecture}."

    def name(self, key: str) -> str:
        """The key as the file spells it."""
        return self._prefix + key

    def has(self, key: str) -> bool:
        """Whether the file gives it."""
        return self.name(key) in self._file.metadata

    def unknown(self, known: frozenset[str]) -> list[str]:
        """The keys of this architecture that are not in `known`, as the file spells them."""
        return [k for k in self._file.metadata if k.startswith(self._prefix) and k.removeprefix(self._prefix) not in known]

    def size(self, key: str) -> int:
        """A positive whole number. An array with one number a layer will do if they are all equal.

        Raises ModelError where the file gives none, or anything else.
        """
        value = self._file.metadata.get(self.name(key))
        if value is None:
            raise ModelError(f"{self._file.path}: the metadata lacks {self.name(key)}")
        if isinstance(value, GgufArray):
            distinct = set(self._file.values(self.name(key)))
            if len(distinct) != 1:
                raise ModelError(f"{self._file.path}: {self.name(key)} differs between layers, which is not supported")
            (value,) = distinct
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_SIZE:
            raise ModelError(f"{self._file.path}: {self.name(key)} must be a positive whole number, not {shown(value)}")
        return value

    def optional_size(self, key: str) -> int | None:
        """`size`, or None where the file does not give it."""
        return self.size(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None, *, lowest: float = 1e-30) -> float:
        """A finite number no smaller than `lowest`. Raises ModelError for anything else, and for none where there is no default."""
        value = self._file.metadata.get(self.name(key), default)
        if value is None:
            raise ModelError(f"{self._file.path}: the metadata lacks {self.name(key)}")
        if isinstance(value, (str, GgufArray, bool)) or not isfinite(value) or not lowest <= value <= 1e30:
            found = "an array" if isinstance(value, GgufArray) else shown(value)
            raise ModelError(f"{self._file.path}: {self.name(key)} must be a number from {lowest:g}, not {found}")
        return shortest_float(value)

    def text(self, key: str, default: str) -> str:
        """A text. Raises ModelError for anything else."""
        value = self._file.metadata.get(self.name(key), default)
        if not isinstance(value, str):
            raise ModelError(f"{self._file.path}: {self.name(key)} must be text, not {shown(value)}")
        return value

    def refused(self, key: str) -> ModelError:
        """The error for a setting that is understood but cannot be run exactly."""
        return ModelError(f"{self._file.path}: {self.name(key)} = {shown(self._file.metadata.get(self.name(key)))} is not supported")


def shortest_float(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05 for the 9.99999974e-06 that a file can hold.

    A value that is no float32 (|value| < 1e38) is returned as it is.
    """
    stored = struct.pack("<f", value)
    if struct.unpack("<f", stored)[0] != value:
        return float(value)
    return next((s for digits in range(1, 10) if struct.pack("<f", s := float(f"{value:.{digits}g}")) == stored), float(value))
