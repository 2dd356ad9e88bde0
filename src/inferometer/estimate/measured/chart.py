"""Published charts of quotients, which have no times that an estimate could be held to."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from inferometer.errors import UserError
from inferometer.hardware.table import Table

_FILE = "charts.toml"


@dataclass(frozen=True, slots=True)
class Chart:
    """One series of a chart: its values by what the horizontal axis says, and where it is from."""

    values: Mapping[str, float]
    source: str


def load_chart(name: str) -> Chart:
    """The series of that name. Raises UserError, naming those that there are, for an unknown one."""
    if name not in load_charts():
        raise UserError(f"chart {name} is unknown; the charts are {', '.join(load_charts())}")
    return load_charts()[name]


@cache
def load_charts() -> Mapping[str, Chart]:
    """Every series by name, in the order of the file. Raises UserError, naming series and key, for a damaged one."""
    whole = Table(tomllib.loads(files("inferometer.estimate.measured").joinpath(_FILE).read_text("utf-8")), _FILE)
    return MappingProxyType({name: _chart(whole.table(name)) for name in whole.names()})


def _chart(table: Table) -> Chart:
    values = table.table("values")
    made = Chart(MappingProxyType({name: float(values.number(name)) for name in values.names()}), table.text("source"))
    table.finish()
    return made
