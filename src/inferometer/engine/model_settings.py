"""What is asked of a model that is to be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from inferometer.errors import UserError, shown
from inferometer.schedule.sampling import SEEDS

_OPTIONAL: Final = ("revision", "quantize", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """As `LLM` has them, each under the name of its argument; what other ranks load their parts by, too.

    Raises UserError for a seed or a choice of numerics that is none, and for what must be a text and is none; the others are checked where
    they are read.
    """

    model: str | Path | None
    revision: str | None
    dtype: str
    device: str
    weights: Literal["auto", "dummy"]
    quantize: str | None
    kv_dtype: str
    admission: str
    group_size: int | None
    num_groups: int | None
    offload: str | None
    percent: str | Sequence[int] | None
    host_memory: float | None
    disk: str | Path | None
    gpu_memory: float | None
    memory_fraction: float
    deterministic: bool
    seed: int

    def __post_init__(self) -> None:
        for name in ("revision", "dtype", "device", "weights", "quantize", "kv_dtype", "admission", "offload"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name not in _OPTIONAL):
                raise UserError(f"{name} must be a text{' or None' if name in _OPTIONAL else ''}, not {shown(value)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < SEEDS:
            raise UserError(f"seed must be a whole number from 0 to 2^64 - 1, not {shown(self.seed)}")
        if not isinstance(self.deterministic, bool):
            raise UserError(f"deterministic must be True or False, not {shown(self.deterministic)}")
