"""Weights from a GGUF file, dequantised as they are read and presented as the Hugging Face checkpoint they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.model.gguf_file import BLOCK_TYPES, GgufFile, GgufTensor
from inferometer.model.gguf_names import StoredTensor, hugging_face_tensors
from inferometer.nn.source import Extent, part_of, prevailing_dtype

_PLAIN: Final[Mapping[str, torch.dtype]] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Elements dequantised to float32 in host memory at once (64 MiB): a large vocabulary's table is never there whole.
_AT_ONCE: Final = 1 << 24


class GgufSource:
    """The tensors of a GGUF file of a llama, gpt2 or bloom, under Hugging Face names, shapes and layouts.

    Raises ModelError for a damaged file, another architecture, or a tensor in blocks of a type that is not supported.
    """

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        try:
            self._tensors = hugging_face_tensors(self._file)
            for name, stored in self._tensors.items():
                if stored.tensor.block_type is None:
                    raise ModelError(
                        f"{path}: the tensor {stored.tensor.name} ({name}) is stored as {_type_name(stored.tensor.type_code)}, "
                        f"which is not supported, only {', '.join(block.name for block in BLOCK_TYPES.values())}"
                    )
        except ModelError:
            self._file.close()
            raise

    @property
    def dtype(self) -> torch.dtype | None:
        blocks = ((stored.tensor.block_type, stored.shape) for stored in self._tensors.values())
        plain = [(_PLAIN.get(block.name), shape) for block, shape in blocks if block is not None and len(shape) > 1]
        if any(dtype is None for dtype, _ in plain):
            return None
        return prevailing_dtype((dtype, shape) for dtype, shape in plain if dtype is not None)

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self._tensors.items()}

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        stored = self._tensors[name]
        return _undo(self._dequantise(stored.tensor, device, dtype), stored)

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        stored = self._tensors[name]
        if len(extent) == 1:
            return part_of(self.read(name, device, dtype), extent)
        (first, last), (left, right) = extent
        if stored.undo == "transpose":
            return self._rows(stored.tensor, range(left, right), range(first, last), device, dtype).t()
        # Rows of a head stay together: it is whole heads that are asked for.
        size, columns = stored.shape[0] // stored.heads, range(left, right)
        if stored.undo != "nothing" and (first % size or last % size):
            return part_of(self.read(name, device, dtype), extent)
        own = replace(stored, heads=(last - first) // size)
        if stored.undo != "thirds":
            return _undo(self._rows(stored.tensor, range(first, last), columns, device, dtype), own)
        third = stored.shape[0] // 3
        runs = [range(third * i + first // 3, third * i + last // 3) for i in range(3)]
        return _undo(torch.cat([self._rows(stored.tensor, run, columns, device, dtype) for run in runs]), own)

    def where(self, name: str) -> str:
        return str(self._file.path)

    def close(self) -> None:
        self._file.close()

    def _dequantise(self, tensor: GgufTensor, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        return self._rows(tensor, range(rows), range(tensor.shape[-1]), device, dtype).view(tensor.shape)

    def _rows(self, tensor: GgufTensor, rows: range, columns: range, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Of the stored tensor as rows of its last dimension: the blocks that hold these rows and columns are all that is read."""
        import numpy
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        block = tensor.block_type
        assert block is not None  # checked at construction
        width = tensor.shape[-1] // block.size * block.nbytes
        stored = numpy.frombuffer(self._file.data(tensor.name), dtype=numpy.uint8).reshape(-1, width)
        first, last = columns.start // block.size, -(-columns.stop // block.size)
        out = torch.empty(len(rows), len(columns), dtype=dtype, device=device)
        step = max(1, _AT_ONCE // max(1, len(columns)))
        for row in range(0, len(rows), step):
            part = stored[rows.start + row : min(rows.start + row + step, rows.stop), first * block.nbytes : last * block.nbytes]
            if block.name in _PLAIN:
                # The copy is what torch may write to; the mapped file is read-only.
                numbers = torch.from_numpy(part.copy()).view(_PLAIN[block.name])
            else:
                # A damaged block may hold infinite scales; the loader decides about non-finite numbers, not a warning.
                with numpy.errstate(all="ignore"):
                    numbers = torch.from_numpy(dequantize(part, GGMLQuantizationType(tensor.type_code)))
            inside = columns.start - first * block.size
            out[row : row + step].copy_(numbers[:, inside : inside + len(columns)])
        return out


def _undo(tensor: Tensor, stored: StoredTensor) -> Tensor:
    rest = tensor.shape[1:]
    if stored.undo == "transpose":
        return tensor.t()
    if stored.undo == "pairs":
        return tensor.view(stored.heads, -1, 2, *rest).transpose(1, 2).reshape(tensor.shape)
    if stored.undo == "thirds":
        return tensor.view(3, stored.heads, -1, *rest).transpose(0, 1).reshape(tensor.shape)
    return tensor


def _type_name(code: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(code).name)
    except ValueError:
        return f"type {code}"
