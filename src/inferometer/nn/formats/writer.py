"""Writes a safetensors file tensor by tensor: the header first, from shapes and types, so that no two tensors need be there at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

KINDS: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def write_safetensors(path: Path, shapes: Shapes, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes `tensors`, which come in the order of `shapes`, and syncs the file to the disk.

    Raises OSError where there is no room, ValueError where a tensor is not what was announced.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype) in shapes.items():
        size = dtype.itemsize
        for length in shape:
            size *= length
        header[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        announced = iter(shapes.items())
        for name, tensor in tensors:
            if next(announced, None) != (name, (tuple(tensor.shape), tensor.dtype)):
                raise ValueError(f"{name} {tuple(tensor.shape)} {tensor.dtype} was not announced here")
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        if next(announced, None) is not None:
            raise ValueError("not all announced tensors came")
        file.flush()
        os.fsync(file.fileno())
