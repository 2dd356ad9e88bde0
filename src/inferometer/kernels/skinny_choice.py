"""Which launch a linear map of few rows gets, or the matrix library instead: as measured once a device, on file in the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, candidates, tiling
from inferometer.kernels.support import capability, power_of_two, processors, usable
from inferometer.model.json_file import replace_json
from inferometer.model.store import cache_dir

SCHEMA_VERSION: Final = 6
"""Of 1 and 2 launches were measured alone, and there were no formats but plain ones; of 3 stages of whole rows meant something else, and
kernels of attention beside them took longer; in 4 no launch was readied; in 5 heads were plain, and what ends a product was loaded as it
ends."""
BUCKETS: Final = (1, 2, 4, 8, 16, 32)
"""Numbers of rows that are measured; what lies between two counts as the larger one."""
DTYPES: Final = (torch.float16, torch.bfloat16)

PLAIN: Final = "plain"

Launches = Mapping[int, Tiling | None]
"""By bucket of rows: how the kernel is launched; None where the matrix library is faster. What is missing, the table decides."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is chosen for: a type, as torch calls it, a bucket of rows, the weight's sizes, and how it is stored: in that type ("plain"), or
    as `format_name` calls it."""

    dtype: str
    rows: int
    outputs: int
    inputs: int
    weight: str = PLAIN


def bucket(rows: int) -> int:
    """The bucket of 1 to 32 rows."""
    return power_of_two(rows)


def buckets_to(rows: int) -> tuple[int, ...]:
    """The buckets of 1 to `rows` rows."""
    return tuple(each for each in BUCKETS if each <= power_of_two(rows))


def launch_for(x: Tensor, weight: Tensor, launches: Launches) -> Tiling | None:
    """How the kernel is launched for x (rows, inputs) and weight (outputs, inputs); None where it does not serve. Reads no device."""
    if x.device.type != "cuda" or x.dim() != 2 or not 0 < x.shape[0] <= MOST_ROWS or x.dtype not in DTYPES or not usable(x.device):
        return None
    if x.stride(1) != 1 or not weight.is_contiguous():
        return None
    key = bucket(x.shape[0])
    if key in launches:
        return launches[key]
    outputs, inputs = weight.shape
    found = tiling(x.shape[0], outputs, inputs, processors(x.device))
    if found.whole or capability(x.device) >= (8, 0):
        return found
    # Before Ampere Triton has no matrix instructions to use.
    return next((launch for launch in candidates(x.shape[0], inputs) if launch.whole), None)


def choice_path(device_name: str) -> Path:
    """Where the choices for a device are kept. Other versions of torch and triton choose anew."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    plain = re.sub(r"[^a-z0-9.]+", "-", f"{device_name} torch {torch.__version__} triton {triton}".lower()).strip("-")
    return cache_dir() / "kernels" / f"skinny-{plain}.json"


def load_choices(path: Path) -> dict[Shape, Tiling | None]:
    """What was measured before. A file that is missing, damaged or of another version counts as empty: it is measured anew."""
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["schema_version"] != SCHEMA_VERSION:
            return {}
        return dict(_entry(item) for item in stored["choices"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def save_choices(path: Path, choices: Mapping[Shape, Tiling | None]) -> bool:
    """Adds them to the file, which is replaced in one step. Returns whether that was possible: if not, the next start measures again."""
    merged = {**load_choices(path), **choices}
    document = {
        "schema_version": SCHEMA_VERSION,
        "choices": [{"shape": asdict(shape), "launch": None if launch is None else asdict(launch)} for shape, launch in merged.items()],
    }
    try:
        replace_json(path, document)
    except OSError:
        return False
    return True


def _entry(item: Mapping[str, Any]) -> tuple[Shape, Tiling | None]:
    shape, launch = Shape(**item["shape"]), item["launch"]
    numbers = [shape.rows, shape.outputs, shape.inputs]
    if launch is None:
        tiles = None
    else:
        tiles = Tiling(**launch)
        sizes = [tiles.outputs, tiles.block, tiles.warps, tiles.stages]
        if (
            any(type(size) is not int for size in (*sizes, tiles.programs))
            or type(tiles.early) is not bool
            or type(tiles.whole) is not bool
            or type(tiles.in_bytes) is not bool
            or type(tiles.readied) is not bool
            or tiles.programs < 0
        ):
            raise ValueError("a launch of other types")
        # Sizes of a kernel's tensors are powers of two, and plain weights in blocks are fetched ahead by cache lines, of 64 inputs.
        least = 1 if tiles.whole else 64 if shape.weight == PLAIN else 32
        if any(size < 1 or power_of_two(size) != size for size in sizes[:3]) or tiles.block < least or tiles.warps > 32 or tiles.stages < 1:
            raise ValueError("a launch that cannot be")
        if (tiles.in_bytes or tiles.readied) and (tiles.whole or shape.weight == PLAIN or tiles.block < 128):
            raise ValueError("a launch for weights in few bits")
        if tiles.whole and shape.rows > 4:
            raise ValueError("a launch for fewer rows")
    named = isinstance(shape.dtype, str) and isinstance(shape.weight, str)
    if not named or any(type(number) is not int or number < 1 for number in numbers) or shape.rows not in BUCKETS:
        raise ValueError("a shape that cannot be")
    return shape, tiles
