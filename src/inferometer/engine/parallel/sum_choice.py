"""Which way a sum over GPUs takes, by its size: as measured once for each kind of GPU and number of ranks, on file in the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import torch

from inferometer.kernels.support import power_of_two
from inferometer.model.json_file import replace_json
from inferometer.model.store import cache_dir

SCHEMA_VERSION: Final = 3

Way: TypeAlias = Literal["mailbox", "rows", "nccl", "pairs", "around"]
"""mailbox: one launch in which all send all to all. rows: one in which each adds up rows of its own and sends them to all. nccl: the
library. pairs: as mailbox, in stores of two words. around: as rows, sent to the others by turns. Both of these to the ranks behind the
sender first."""
WAYS: Final[tuple[Way, ...]] = get_args(Way)
LIKE: Final[Mapping[Way, Way]] = {"pairs": "mailbox", "around": "rows"}
"""Ways that must give the same bits as others, of which more is known, before they are chosen."""
SCATTERED: Final[frozenset[Way]] = frozenset({"rows", "around"})
"""After which each rank has rows of the residual."""
POSTED: Final[frozenset[Way]] = frozenset({"mailbox", "pairs"})
"""Through a mailbox."""

SIZES: Final = tuple(1 << power for power in range(14, 27, 2))
"""Bytes of the sums that are measured, 16 KiB to 64 MiB. What lies between two counts as the larger one, what lies outside as the end."""

Choice: TypeAlias = Mapping[int, Way]
"""By size; empty before anything is measured."""


def offered(ranks: int) -> tuple[Way, ...]:
    """The ways that are measured for a choice.

    Those that are like another are left out: no model has run on them over links yet (`benchmarks/collectives.py --only ways` says there
    whether they agree with it). Between two ranks the library sends as much as rows do, and norms nothing.
    """
    return tuple(way for way in WAYS if way not in LIKE and (way != "nccl" or ranks > 2))


def size_class(nbytes: int) -> int:
    """The size that so many bytes count as."""
    wanted = power_of_two(max(1, nbytes))
    return next((size for size in SIZES if size >= wanted), SIZES[-1])


def way_for(nbytes: int, choice: Choice, able: Mapping[Way, bool]) -> Way:
    """The way for a sum of so many bytes among those that are able: the measured one, else the first in the order of `WAYS`.

    Raises RuntimeError where none is.
    """
    chosen = choice.get(size_class(nbytes))
    if chosen is not None and able[chosen]:
        return chosen
    for way in WAYS:
        if able[way]:
            return way
    raise RuntimeError(f"no way to add up {nbytes} bytes over GPUs")


def best(times_s: Mapping[int, Mapping[Way, float]]) -> dict[int, Way]:
    """By size, the way that took least; of equals the first in the order of `WAYS`."""
    return {size: min((way for way in WAYS if way in times), key=lambda way: times[way]) for size, times in times_s.items() if times}


def choice_path(device_name: str, ranks: int) -> Path:
    """Where the choice for so many such GPUs is kept. Other versions of torch choose anew."""
    plain = re.sub(r"[^a-z0-9.]+", "-", f"{ranks} {device_name} torch {torch.__version__}".lower()).strip("-")
    return cache_dir() / "kernels" / f"sums-{plain}.json"


def load_choice(path: Path) -> Choice:
    """What was measured before. A file that is missing, damaged or of another version counts as empty: it is measured anew."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if stored["schema_version"] != SCHEMA_VERSION:
            return {}
        found = {int(size): way for size, way in stored["ways"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return found if set(found) == set(SIZES) and all(way in WAYS for way in found.values()) else {}


def save_choice(path: Path, choice: Choice) -> bool:
    """Replaces the file in one step. Returns whether that was possible: if not, the next start measures again."""
    document = {"schema_version": SCHEMA_VERSION, "ways": {str(size): way for size, way in choice.items()}}
    try:
        replace_json(path, document)
    except OSError:
        return False
    return True
