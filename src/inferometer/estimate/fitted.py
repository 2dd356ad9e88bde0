"""Which constants each regime of measured rows fits, and between which values they make physical sense."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from inferometer.errors import UserError

FITTED = "fitted.toml"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant's value before any row is seen, and the ends of its range. Raises ValueError unless 0 < low <= prior <= high."""

    prior: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.prior <= self.high:
            raise ValueError(f"a range is 0 < low <= prior <= high, not {self}")


def fitted(regime: str) -> Mapping[str, Fitted]:
    """The constants of a regime by name; none for one that fits nothing."""
    return _read().get(regime, MappingProxyType({}))


@cache
def _read() -> Mapping[str, Mapping[str, Fitted]]:
    document = tomllib.loads(files("inferometer.estimate").joinpath(FITTED).read_text("utf-8"))
    found: dict[str, Mapping[str, Fitted]] = {}
    for regime, constants in document.items():
        try:
            found[regime] = MappingProxyType({name: Fitted(*map(float, ends)) for name, ends in constants.items()})
        except (TypeError, ValueError) as error:
            raise UserError(f"{FITTED}: {regime}: {error}") from None
    return MappingProxyType(found)
