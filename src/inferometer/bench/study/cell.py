"""What stands in a cell of a study's table: a template of figures, each from a source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from inferometer.bench.study.figure import STATISTICS, Figure, find_figure
from inferometer.errors import shown

Source = Literal["measured", "predicted", "bound", "published", "error", "share", "published_estimate", "published_error"]
SOURCES: tuple[Source, ...] = get_args(Source)
# In a table of blocks, stands for the block's own figure.
BLOCK_FIGURE = "figure"

_FIELD = re.compile(r"\{([^{}]*)\}")
_INNER = re.compile(
    rf"(?:(?P<source>{'|'.join(SOURCES)})\.)?(?P<figure>[a-z0-9_-]+)(?:\.(?P<statistic>{'|'.join(STATISTICS)}))?(?::(?P<shape>.*))?"
)
_SHAPE = re.compile(r"\+?,?(\.\d{1,2})?[fge%]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number of a cell.

    source: measured, predicted, bound or published; error: predicted over measured, less one; share: of the bound that was reached.
    published_estimate, published_error: what the publication's own estimator said, and that over its measurement, less one.
    statistic: of the runs, for what is measured. shape: a format specification.
    figure None stands for the figure of the block.
    """

    figure: Figure | None
    source: Source = "measured"
    statistic: str = "mean"
    shape: str | None = None

    @property
    def plain(self) -> bool:
        """Whether it is a mean that was measured: what a prediction, a bound or a publication can stand beside."""
        return self.source == "measured" and self.statistic == "mean"

    def of(self, figure: Figure) -> Field:
        """The field in a block of that figure."""
        return replace(self, figure=self.figure or figure)

    def text(self, value: float) -> str:
        """The number as shown. Raises TypeError for a field that still waits for its block's figure."""
        if self.figure is None:
            raise TypeError("the field has no figure yet")
        relative = self.source in ("error", "share", "published_error")
        default = ("+.2%" if self.source.endswith("error") else ".1%") if relative else f".{self.figure.decimals}f"
        return shaped(value, self.shape or default)


@dataclass(frozen=True, slots=True)
class Template:
    """Fields and the words between them: `words[0]`, `fields[0]`, `words[1]`, ..., one word more than fields."""

    words: tuple[str, ...]
    fields: tuple[Field, ...]

    @property
    def plain(self) -> bool:
        """Whether every field is a mean that was measured."""
        return all(each.plain for each in self.fields)

    def of(self, figure: Figure) -> Template:
        """The template in a block of that figure."""
        return replace(self, fields=tuple(each.of(figure) for each in self.fields))

    def sourced(self, source: Source) -> Template:
        """The same figures of another source, in the source's own shape where it is a share."""
        return replace(self, fields=tuple(replace(each, source=source) for each in self.fields))

    def text(self, values: tuple[float, ...]) -> str:
        """The cell with a value for each field."""
        parts = [each.text(value) + word for each, value, word in zip(self.fields, values, self.words[1:], strict=True)]
        return self.words[0] + "".join(parts)


def shaped(value: float, shape: str) -> str:
    """A number in a shape, with two significant digits at least: a document's fixed decimals are too few on faster hardware."""
    text = format(value, shape)
    decimals = re.search(r"\.(\d+)f$", shape)
    if decimals is None or not value or abs(value) >= 10.0 ** (1 - int(decimals[1])):
        return text
    return format(value, f".{1 - math.floor(math.log10(abs(value)))}f")


def template_of(text: str) -> Template:
    """Reads "{throughput:.2f} | {ms_per_token}" or, figures alone, "throughput | ms_per_token".

    A field is {[source.]figure[.statistic][:shape]}. Raises ValueError for anything else in braces and for a cell without figures.
    """
    if "{" not in text and "}" not in text:
        names = [name.strip() for name in text.split("|")]
        inner = " | ".join("{" + name + "}" for name in names)
        return template_of(inner) if all(names) else _fail(text)
    fields = tuple(_field(match) for match in _FIELD.findall(text))
    words = tuple(_FIELD.split(text)[::2])
    if not fields or any("{" in word or "}" in word for word in words):
        _fail(text)
    return Template(words, fields)


def _field(text: str) -> Field:
    match = _INNER.fullmatch(text)
    if match is None:
        known = f"sources are {', '.join(SOURCES)}; statistics are {', '.join(STATISTICS)}"
        raise ValueError(f"{{{text}}} is not {{[source.]figure[.statistic][:shape]}}; {known}")
    named = next((each for each in SOURCES if each == match["source"]), SOURCES[0])
    shape = match["shape"]
    if shape is not None and not _SHAPE.fullmatch(shape):
        raise ValueError(f"the shape {shown(shape)} is not one such as .2f, ,.0f, +.1% or .3g")
    statistic = match["statistic"] or "mean"
    if statistic != "mean" and named != "measured":
        raise ValueError(f"{{{text}}}: {statistic} is of the runs, and only what is measured has runs")
    figure = None if match["figure"] == BLOCK_FIGURE else find_figure(match["figure"])
    return Field(figure=figure, source=named, statistic=statistic, shape=shape)


def _fail(text: str) -> Template:
    raise ValueError(f"{shown(text)} names no figure; write one or several as in 'throughput | ms_per_token' or '{{latency:.3f}} s'")


# How a table repeats itself from another source: that source by the name that a study's `beside` gives it.
BESIDE: Mapping[str, Source] = MappingProxyType({"predicted": "predicted", "bound": "bound", "published": "published"})
