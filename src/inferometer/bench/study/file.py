"""Studies as TOML: read, checked, brought to a scale, and written again. What is wrong is told with its key and its line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.bench.backends.registry import names
from inferometer.bench.study.check import StudyCheck
from inferometer.bench.study.scale import FULL, scaled, several
from inferometer.bench.study.settings import did_you_mean
from inferometer.bench.study.study import Axis, Exclusion, Part, Settings, Study, StudyColumn
from inferometer.bench.study.toml_text import dumps
from inferometer.errors import UserError


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A study's text, whose every scale has been checked. `where` is what messages call it."""

    name: str
    where: str
    text: str

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that it can be run at; "full" is the file as it stands, unless it says otherwise."""
        return tuple(dict.fromkeys((FULL, *tomllib.loads(self.text).get("scale", {}))))

    def resolved(self, scale: str = FULL, overrides: Settings | None = None) -> dict[str, Any]:
        """The document at a scale, as plain values without scales. `overrides` hold in every part and column.

        Raises UserError for a scale that the study has not got, and for one or an override that says something wrong.
        """
        whole = tomllib.loads(self.text)
        scales = whole.pop("scale", {})
        if scale not in scales and scale != FULL:
            raise UserError(f"--scale {scale} is not one of {self.where}{did_you_mean(scale, self.scales)}")
        chosen = scales.get(scale, {})
        parts = chosen.get("parts", {})
        document = {**whole, **{key: value for key, value in chosen.items() if key not in ("fixed", "parts")}}
        document["fixed"] = {**whole.get("fixed", {}), **chosen.get("fixed", {})}
        document["part"] = [scaled(part, parts.get(part["name"], {})) for part in whole["part"]]
        return _overridden({"name": self.name, **document}, overrides or {})

    def study(self, scale: str = FULL, overrides: Settings | None = None) -> Study:
        """The study at a scale. Raises what `resolved` does."""
        return _study(self.name, self.resolved(scale, overrides))


def read_study(text: str, name: str, where: str, *, measured: bool = False) -> StudyFile:
    """Checks a study's text at every scale. It is called `name` unless it says what it is called.

    measured: whether it is there for its records alone, whose backends may be of packages that are not here.

    Raises UserError, one line with the key and the line of the file, for what is no TOML or no study.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: not valid TOML: nested too deeply") from None
    StudyCheck(text, where, None if measured else names()).document(document)
    found = StudyFile(document.get("name", name), where, text)
    for scale in found.scales:
        found.study(scale)
    return found


def resolved_text(document: Mapping[str, Any]) -> str:
    """A resolved study as TOML."""
    return dumps(document)


def _overridden(document: dict[str, Any], overrides: Settings) -> dict[str, Any]:
    if not overrides:
        return document

    def without(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name not in overrides}

    document["fixed"] = {**document["fixed"], **overrides}
    for part in document["part"]:
        part["fixed"] = without(part.get("fixed", {}))
        part["axes"] = {name: _points(values, without) for name, values in without(part.get("axes", {})).items()}
        part["columns"] = [without(column) for column in part["columns"]]
    return document


def _points(values: Sequence[Any], without: Callable[[Mapping[str, Any]], dict[str, Any]]) -> list[Any]:
    """The points of an axis, each once, without what an override decides."""
    kept: list[Any] = []
    for value in values:
        point = without(value) if isinstance(value, Mapping) else value
        if point not in kept:
            kept.append(point)
    return kept


def _study(name: str, document: Mapping[str, Any]) -> Study:
    return Study(
        name=name,
        title=document["title"],
        document=document.get("document"),
        summary=document.get("summary"),
        gpu_minutes=document.get("gpu_minutes"),
        fixed=document["fixed"],
        parts=tuple(_part(part) for part in document["part"]),
        tables=tuple(document.get("table", ())),
        plots=tuple(document.get("plot", ())),
    )


def _part(part: Mapping[str, Any]) -> Part:
    return Part(
        name=part["name"],
        fixed=part.get("fixed", {}),
        axes=tuple(_axis(name, values) for name, values in part.get("axes", {}).items()),
        columns=tuple(
            StudyColumn(name=column["name"], settings={key: value for key, value in column.items() if key != "name"})
            for column in part["columns"]
        ),
        exclusions=tuple(_exclusion(exclusion) for exclusion in part.get("exclude", ())),
    )


def _axis(name: str, values: Sequence[Any]) -> Axis:
    return Axis(name=name, points=tuple(value if isinstance(value, Mapping) else {name: value} for value in values))


def _exclusion(given: Mapping[str, Any]) -> Exclusion:
    where = {key: several(value) for key, value in given.items() if key not in ("reason", "column")}
    return Exclusion(reason=given["reason"], where=where, columns=several(given["column"]) if "column" in given else None)
