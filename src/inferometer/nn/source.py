"""Where weights come from, whatever the format: named tensors that can be read one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Protocol

import torch
from torch import Tensor

Extent = tuple[tuple[int, int], ...]
"""A part of a tensor: (start, stop) in each of its dimensions."""


class CheckpointSource(Protocol):
    """A checkpoint's tensors. Names are exactly those in the file; the loader resolves prefixes and older spellings."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The floating dtype that most elements are stored in; None where that is no torch dtype (quantised blocks)."""
        ...

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by name, without reading any data."""
        ...

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        """The type to read in for numbers that are rounded afterwards, where a model's own type is `dtype`."""
        ...

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """The tensor on `device` in `dtype`; do not write to it, it may be the file itself.

        Raises ModelError, naming tensor and file, where it is damaged or not made of numbers that can be weights.
        """
        ...

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """As `read`, of a part alone: no more of the file is touched than holds it (dummy numbers are drawn whole)."""
        ...

    def where(self, name: str) -> str:
        """The file that holds `name`, for messages; for a name that no file holds, what the checkpoint as a whole is called."""
        ...

    def close(self) -> None:
        """Lets go of the files."""
        ...


def part_of(tensor: Tensor, extent: Extent) -> Tensor:
    """The part as a view, of as many dimensions as the tensor."""
    return tensor[tuple(slice(start, stop) for start, stop in extent)]


def prevailing_dtype(stored: Iterable[tuple[torch.dtype, tuple[int, ...]]]) -> torch.dtype | None:
    """The floating dtype with the most elements among tensors given as (dtype, shape)."""
    elements: Counter[torch.dtype] = Counter()
    for dtype, shape in stored:
        if dtype.is_floating_point:
            elements[dtype] += prod(shape)
    return elements.most_common(1)[0][0] if elements else None
