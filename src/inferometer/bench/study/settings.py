"""The settings that a study may give: what decides a case, and what a request for it says of the effort. Each with its kind."""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

from inferometer.bench.backends.request import APIS, BenchRequest
from inferometer.bench.records.case import SAMPLING, Case
from inferometer.errors import UserError, shown
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES
from inferometer.model.offload import read_offload
from inferometer.schedule.admission import ADMISSIONS
from inferometer.schedule.sampling import SamplingParams

TIMEOUT = "timeout_s"
# Resolved from others, or the plural of one.
_NOT_GIVEN = {"device_name", "memory_limit", "host_memory_limit", "batch_sizes", "backends", "contexts"}
# A case has whether there is one, a request which.
_PATHS = {"disk"}
_MAY_BE_ZERO = {"warmups", "seed", "top_k"}
# Values that no backend, of this package or of another, has more of. What formats of weights and caches there are, a backend says.
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dtype": ("auto", *COMPUTE_DTYPES, *DTYPE_ALIASES),
        "admission": ADMISSIONS,
        "weights": ("auto", "dummy"),
        "api": ("auto", *APIS),
    }
)
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


@cache
def settings() -> Mapping[str, type]:
    """Every setting with what its value must be: str, int, float or bool."""
    hints = {**get_type_hints(BenchRequest), **get_type_hints(Case)}
    names = [field.name for kind in (Case, BenchRequest) for field in fields(kind)]
    known = {name: _kind(hints[name]) for name in dict.fromkeys(names) if name not in _NOT_GIVEN}
    return MappingProxyType(known | dict.fromkeys(_PATHS, str) | {TIMEOUT: float})


def problem(name: str, value: Any) -> str | None:
    """What is wrong with a setting, in words that begin with its name; None if nothing is. Whether any stack takes it is not asked."""
    kind = settings().get(name)
    if kind is None:
        return f"{name} is no setting of a case{did_you_mean(name, settings())}"
    if kind is bool and not isinstance(value, bool):
        return f"{name} must be true or false, not {shown(value)}"
    if kind is str and not (isinstance(value, str) and value.strip()):
        return f"{name} must be a string that is not empty, not {shown(value)}"
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        return f"{name} must be a whole number, not {shown(value)}"
    if kind is float and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)):
        return f"{name} must be a number, not {shown(value)}"
    if kind is int and value < (0 if name in _MAY_BE_ZERO else 1):
        return f"{name} must be at least {0 if name in _MAY_BE_ZERO else 1}, not {value}"
    if name in (TIMEOUT, "gpu_memory", "host_memory") and value <= 0:
        return f"{name} must be above 0, not {value}"
    if name == "tuning_seconds" and value < 0:
        return f"{name} must be at least 0, not {value}"
    if name in _WORDS and value not in _WORDS[name]:
        return f"{name} must be one of {', '.join(_WORDS[name])}, not {shown(value)}"
    if name == "device" and not _DEVICE.fullmatch(value):
        return f"device must be auto, cpu, cuda or cuda:N, not {shown(value)}"
    try:
        if name in ("offload", "percent"):
            read_offload(**{"offload": None, name: value})
        elif name in SAMPLING:
            SamplingParams(**{name: value})
    except UserError as error:
        return str(error).removeprefix("--")
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that offers the nearest of `known`; all of them if none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(names)}"


def _kind(hint: Any) -> type:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    if not isinstance(hint, type) or hint not in (str, int, float, bool):
        raise TypeError(f"a setting is text, a number or a flag, not {hint!r}")
    return hint
