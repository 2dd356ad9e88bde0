"""How tables write settings and facts of models."""

from __future__ import annotations

from typing import Any

from inferometer.bench.study.layout import RowSpec
from inferometer.model.parameters import parameter_count
from inferometer.model.presets import preset


def row_label(row: RowSpec, value: Any) -> str:
    """What a row's label says for a value of its setting."""
    if row.fact is not None and str(value) not in row.words:
        return model_fact(str(value), row.fact)
    return row.words.get(str(value), shown(value))


def shown(value: Any) -> str:
    """A setting as the tables of the field write it: Booleans in lower case, None for what is unset."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def model_fact(model: str, fact: str) -> str:
    """Parameters in millions or billions, layers, or hidden size of a preset; "-" for any other model."""
    known = preset(model)
    if known is None:
        return "-"
    spec = known.spec()
    if fact != "parameters":
        return str(spec.layers if fact == "layers" else spec.hidden)
    count = parameter_count(spec)
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
