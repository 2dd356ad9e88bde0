"""Whether a document read from TOML is a study, and if not, at which key and in which line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from inferometer.bench.study.scale import scaled, several
from inferometer.bench.study.settings import did_you_mean, problem, settings
from inferometer.bench.study.study import Settings
from inferometer.bench.study.table import PlotSpec, TableSpec, plot_of, table_of
from inferometer.bench.study.toml_text import line_of
from inferometer.errors import UserError, shown

_TOP = ("name", "title", "document", "summary", "gpu_minutes", "fixed", "part", "scale", "table", "plot")
_PART = ("name", "fixed", "axes", "columns", "exclude")
_SCALE = ("gpu_minutes", "fixed", "parts")
_SCALED_PART = ("fixed", "axes", "columns", "exclude")


class StudyCheck:
    """Goes through a document from the top and stops at the first thing that is wrong.

    backends: those that may be named, None for any.
    """

    def __init__(self, text: str, where: str, backends: Sequence[str] | None) -> None:
        self._backends = backends
        self._text = text
        self._where = where

    def document(self, document: Mapping[str, Any]) -> None:
        """Raises UserError for the first thing that is wrong."""
        self._keys(document, _TOP, ())
        self._text_at(document, "title", ())
        for key in ("name", "document", "summary"):
            if key in document:
                self._text_at(document, key, ())
        self._minutes(document, ())
        fixed = self._settings(document, ())
        parts = self._list_of_tables(document, "part", (), least=1)
        names: list[str] = []
        for index, part in enumerate(parts):
            names.append(self._part(part, ("part", index), fixed, names))
        self._scales(document, {part["name"]: part for part in parts}, fixed)
        columns = _column_names(document)
        for kind, read in (("table", table_of), ("plot", plot_of)):
            for index, values in enumerate(self._list_of_tables(document, kind, ())):
                self._output((kind, index), values, read, columns)

    def _part(self, part: Mapping[str, Any], path: tuple[str | int, ...], fixed: Settings, names: list[str]) -> str:
        self._keys(part, _PART, path)
        name = self._text_at(part, "name", path)
        if name in names:
            self._fail((*path, "name"), f"{name!r} is the name of an earlier part")
        self._contents(part, path, fixed)
        return name

    def _contents(self, part: Mapping[str, Any], path: tuple[str | int, ...], fixed: Settings) -> None:
        """What a part holds, or what a scale makes of it. Settings of the study or the part may stand anywhere but on an axis twice."""
        held = self._settings(part, path)
        varied = self._axes(part, (*path, "axes"))
        for name in varied:
            if name in held:
                self._fail((*path, "fixed", name), f"{name} is fixed and an axis of the part; leave one of them out")
        columns = self._columns(part, path, varied)
        for index, exclusion in enumerate(self._list_of_tables(part, "exclude", path)):
            self._exclusion(exclusion, (*path, "exclude", index), columns)

    def _axes(self, part: Mapping[str, Any], path: tuple[str | int, ...]) -> list[str]:
        """The settings that the axes vary."""
        axes = self._table(part, "axes", path[:-1])
        varied: list[str] = []
        for name, values in axes.items():
            here = (*path, name)
            if not isinstance(values, list) or not values:
                self._fail(here, f"{name} must be a list of at least one value, not {shown(values)}")
            together = isinstance(values[0], Mapping)
            for value in values:
                if isinstance(value, Mapping) != together or (together and set(value) != set(values[0])):
                    self._fail(here, f"{name}: every point of an axis has the same settings")
                for setting, each in value.items() if together else ((name, value),):
                    self._setting(setting, each, here)
            if any(value in values[:index] for index, value in enumerate(values)):
                self._fail(here, f"{name} has a value twice")
            for setting in values[0] if together else (name,):
                if setting in varied:
                    self._fail(here, f"{setting} is on another axis too")
                varied.append(setting)
        return varied

    def _columns(self, part: Mapping[str, Any], path: tuple[str | int, ...], varied: Iterable[str]) -> list[str]:
        if "columns" not in part and path[0] == "scale":
            return []
        names: list[str] = []
        for index, column in enumerate(self._list_of_tables(part, "columns", path, least=1)):
            here = (*path, "columns", index)
            name = self._text_at(column, "name", here)
            if name in names:
                self._fail((*here, "name"), f"{name!r} is the name of an earlier column")
            names.append(name)
            for key, value in column.items():
                if key == "name":
                    continue
                self._setting(key, value, (*here, key))
                if key in varied:
                    self._fail((*here, key), f"{key} is an axis of the part; a column cannot fix it")
        return names

    def _exclusion(self, exclusion: Mapping[str, Any], path: tuple[str | int, ...], columns: list[str]) -> None:
        self._text_at(exclusion, "reason", path)
        meant = [key for key in exclusion if key != "reason"]
        if not meant:
            self._fail((*path, "reason"), "an exclusion names what it leaves out: a column, a setting, or several")
        for key in meant:
            values = several(exclusion[key])
            if not values:
                self._fail((*path, key), f"{key} must be a value or a list of values, not []")
            for value in values:
                if key != "column":
                    self._setting(key, value, (*path, key))
                elif columns and value not in columns:
                    self._fail((*path, key), f"column {shown(value)} is not one of the part's{did_you_mean(str(value), columns)}")

    def _output(
        self,
        path: tuple[str | int, ...],
        values: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], TableSpec | PlotSpec],
        columns: Mapping[str, Sequence[str]],
    ) -> None:
        """A table or a plot; `columns` are those of each part at any scale."""
        try:
            made = read(values)
        except ValueError as error:
            words = str(error).removeprefix("table: ").removeprefix("plot: ")
            key = re.split(r"[^A-Za-z0-9_-]", words)[0]  # it begins with the key that is wrong
            self._fail((*path, key) if key in values else path, words)
        if made.part not in columns:
            self._fail((*path, "part"), f"{made.part} is no part of the study{did_you_mean(made.part, columns)}")
        known = columns[made.part]
        stray = next((name for name in made.named_columns if name not in known), None)
        if stray is not None:
            key = next((key for key in ("ratio", "where", "columns") if stray in str(values.get(key, ""))), "columns")
            self._fail((*path, key), f"{key}: part {made.part} has no column {stray!r}{did_you_mean(stray, known)}")

    def _scales(self, document: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]], fixed: Settings) -> None:
        for scale, change in self._table(document, "scale", ()).items():
            path = ("scale", scale)
            if not isinstance(change, Mapping):
                self._fail(path, f"{scale} must be a table, not {shown(change)}")
            self._keys(change, _SCALE, path)
            self._minutes(change, path)
            self._settings(change, path)
            for name, part in self._table(change, "parts", path).items():
                here = (*path, "parts", name)
                if name not in parts:
                    self._fail(here, f"{name} is no part of the study{did_you_mean(name, parts)}")
                if not isinstance(part, Mapping):
                    self._fail(here, f"{name} must be a table, not {shown(part)}")
                self._keys(part, _SCALED_PART, here)
                self._contents(part, here, fixed)
                self._fits(scaled(parts[name], part), here)

    def _fits(self, part: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        """What a scale replaces must go with what it leaves."""
        varied = {
            key for name, values in part.get("axes", {}).items() for key in (values[0] if isinstance(values[0], Mapping) else (name,))
        }
        held = varied & set(part.get("fixed", {}))
        for column in part["columns"]:
            held |= varied & set(column)
        if held:
            self._fail(path, f"{min(held)} is an axis of the part and fixed as well at this scale; replace both")
        names = [column["name"] for column in part["columns"]]
        for exclusion in part.get("exclude", ()):
            for name in several(exclusion.get("column", [])):
                if name not in names:
                    self._fail(path, f"an exclusion names the column {name!r}, which the part has not got at this scale")

    def _settings(self, table: Mapping[str, Any], path: tuple[str | int, ...]) -> Settings:
        fixed = self._table(table, "fixed", path)
        for name, value in fixed.items():
            self._setting(name, value, (*path, "fixed", name))
        return fixed

    def _setting(self, name: str, value: Any, path: tuple[str | int, ...]) -> None:
        wrong = problem(name, value)
        if wrong is None and name == "backend" and self._backends is not None and value not in self._backends:
            wrong = f"backend {shown(value)} is unknown{did_you_mean(value, self._backends)}"
        if wrong is not None:
            self._fail(path, wrong)

    def _minutes(self, table: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        value = table.get("gpu_minutes", 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self._fail((*path, "gpu_minutes"), f"gpu_minutes must be a number of minutes, not {shown(value)}")

    def _keys(self, table: Mapping[str, Any], known: Sequence[str], path: tuple[str | int, ...]) -> None:
        for key in table:
            if key not in known:
                # A setting in the wrong place is told where it belongs.
                hint = "; settings stand under fixed" if key in settings() and "fixed" in known else did_you_mean(key, known)
                self._fail((*path, key), f"{key} is not known here{hint}")

    def _text_at(self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...]) -> str:
        if key not in table:
            self._fail(path, f"{key} is missing")
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            self._fail((*path, key), f"{key} must be a string that is not empty, not {shown(value)}")
        return value

    def _table(self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...]) -> Mapping[str, Any]:
        value = table.get(key, {})
        if not isinstance(value, Mapping):
            self._fail((*path, key), f"{key} must be a table, not {shown(value)}")
        return value

    def _list_of_tables(
        self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...], *, least: int = 0
    ) -> Sequence[Mapping[str, Any]]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            self._fail((*path, key), f"{key} must be a list of tables, [[{key}]] each, not {shown(value)}")
        if len(value) < least:
            self._fail((*path, key) if key in table else path, f"{key} is missing: at least one table [[{key}]]")
        return value

    def _fail(self, path: tuple[str | int, ...], words: str) -> NoReturn:
        line = line_of(self._text, path) if path else None
        place = "".join(f"[{key + 1}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
        at = f", line {line}" if line is not None else ""
        # Values are shown as they were given, and one may be of several lines.
        raise UserError(" ".join(f"{self._where}{at}: {place + ': ' if place else ''}{words}".split()))


def _column_names(document: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """The columns of each part of a checked document, at the full scale and at others."""
    found = {part["name"]: [column["name"] for column in part["columns"]] for part in document["part"]}
    for change in document.get("scale", {}).values():
        for name, part in change.get("parts", {}).items():
            found[name] += [column["name"] for column in part.get("columns", ())]
    return found
