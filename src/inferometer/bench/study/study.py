"""A study: questions about stacks that are asked together, and the tables and plots that are made of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Settings = Mapping[str, Any]
"""Values by the names that a case and a request for it have: model, backend, dtype, batch_size, runs, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a part varies: one setting, or several that change together. Each point is the settings that hold there."""

    name: str
    points: tuple[Settings, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError(f"the axis {self.name} has no point")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyColumn:
    """A stack, named, as the settings that make it."""

    name: str
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Cases that are left out and why. A case is meant if it has one of the given values in every given setting.

    `columns` None stands for all.
    """

    reason: str
    where: Mapping[str, tuple[Any, ...]]
    columns: tuple[str, ...] | None = None

    def covers(self, column: str, settings: Settings) -> bool:
        """Whether a case of that column is left out."""
        if self.columns is not None and column not in self.columns:
            return False
        return all(name in settings and settings[name] in values for name, values in self.where.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The product of axes and columns, with settings that hold throughout. Raises ValueError for names that occur twice."""

    name: str
    columns: tuple[StudyColumn, ...]
    axes: tuple[Axis, ...] = ()
    fixed: Settings = field(default_factory=dict)
    exclusions: tuple[Exclusion, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"part {self.name} needs columns, each with a name of its own")

    def points(self) -> Iterator[Settings]:
        """The settings of each row: the product of the axes, the last of them the fastest."""
        for chosen in product(*(axis.points for axis in self.axes)):
            yield {name: value for point in chosen for name, value in point.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question as the study asks it: the settings of a row under a column. `row` numbers the part's rows from 0.

    excluded: why it is left out, None if it is not.
    """

    part: str
    column: str
    row: int
    point: Settings
    settings: Settings
    excluded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study at one scale. `gpu_minutes` is what it takes on one H100, None if nobody has measured it.

    tables, plots: as the file has them. document: what the study reproduces. Raises ValueError for parts of the same name.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    document: str | None = None
    summary: str | None = None
    gpu_minutes: float | None = None
    fixed: Settings = field(default_factory=dict)
    tables: tuple[Mapping[str, Any], ...] = ()
    plots: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"study {self.name} needs parts, each with a name of its own")

    def cells(self) -> Iterator[Cell]:
        """Every question, part by part, row by row, column by column. A column's settings win over a row's, and those over fixed ones.

        Where a batch is not given and groups are, it is made of them.
        """
        for part in self.parts:
            for row, point in enumerate(part.points()):
                for column in part.columns:
                    settings = {**self.fixed, **part.fixed, **point, **column.settings}
                    if "batch_size" not in settings and {"num_groups", "group_size"} <= set(settings):
                        settings["batch_size"] = settings["num_groups"] * settings["group_size"]
                    reason = next((each.reason for each in part.exclusions if each.covers(column.name, settings)), None)
                    yield Cell(part=part.name, column=column.name, row=row, point=point, settings=settings, excluded=reason)
