"""Random weights that stand for a checkpoint: the same for the same seed and name, in whatever order they are read."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import torch
from torch import Tensor

from inferometer.model.checkpoint import Family
from inferometer.model.spec import ModelSpec
from inferometer.nn.source import Extent, part_of

_SPREAD: Final = 0.02
"""Standard deviation of everything: GPT-2's initialisation, small enough that no depth in use overflows float16."""


class DummySource:
    """Weights for `spec` under the family's checkpoint names, created on the device they are read to, in the dtype asked for.

    Matrices and tables are normal with mean 0, biases too, norm weights with mean 1. The numbers depend on the seed, the name,
    the kind of device (its generator) and the dtype. `dtype` is what the model's configuration says it is stored in.
    """

    def __init__(self, spec: ModelSpec, family: Family, *, seed: int, dtype: torch.dtype | None = None) -> None:
        self._spec = spec
        self._seed = seed
        self._dtype = dtype
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._means: dict[str, float] = {}
        for parameter, pieces in family.pieces(spec).items():
            for piece in pieces:
                self._shapes[piece.tensor] = piece.shape
                self._means[piece.tensor] = 1.0 if parameter.endswith("norm.weight") else 0.0

    @property
    def dtype(self) -> torch.dtype | None:
        return self._dtype

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        return dtype  # drawn in another, the numbers would be others

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        # sha256, since Python's own hash of a string differs between processes; manual_seed takes 64 bits.
        digest = sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        out = torch.empty(self._shapes[name], dtype=dtype, device=device)
        return out.normal_(self._means[name], _SPREAD, generator=generator)

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        # A generator has no way into the middle of its numbers.
        return part_of(self.read(name, device, dtype), extent).clone()

    def where(self, name: str) -> str:
        return f"the dummy weights of {self._spec.name}"

    def close(self) -> None:
        """Nothing is held."""
