"""Checkpoints that torch.save wrote (pytorch_model.bin), read without running any code that they carry."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.errors import ModelError, shown
from inferometer.nn.shards import check_index, must_open, read_index
from inferometer.nn.source import Extent, part_of, prevailing_dtype

# What torch.load is seen to raise on damaged files, beyond its own refusals.
_DAMAGE: Final = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    zipfile.BadZipFile,
    MemoryError,
)


class TorchBinSource:
    """The tensors of a `pytorch_model.bin`, or of the shards that a `pytorch_model.bin.index.json` lists.

    One shard is open at a time, mapped if torch wrote it as an archive (any since 1.6), else in host memory whole.
    Raises ModelError for a damaged file, one that holds more than tensors, a missing shard or a tensor that a shard lacks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        listed = read_index(path) if path.name.endswith(".index.json") else {}
        self._shard: tuple[Path, Mapping[str, Tensor]] | None = None
        self._files: dict[str, Path] = {}
        self._stored: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for file in dict.fromkeys(listed.values()) if listed else [path]:
            for name, tensor in self._load(file).items():
                if listed.get(name, file) == file:
                    self._files[name], self._stored[name] = file, (tensor.dtype, tuple(tensor.shape))
        check_index(path, listed, self._files)

    @property
    def dtype(self) -> torch.dtype | None:
        return prevailing_dtype(self._stored.values())

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return {name: shape for name, (_, shape) in self._stored.items()}

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        return self._stored_as(name).to(device=device, dtype=dtype)

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        return part_of(self._stored_as(name), extent).to(device=device, dtype=dtype)

    def _stored_as(self, name: str) -> Tensor:
        file = self._files[name]
        tensor = self._load(file)[name]
        if tensor.is_meta:
            raise ModelError(f"{file}: the tensor {name} was saved as a shape without its numbers; save the model again")
        if tensor.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16) or tensor.layout != torch.strided:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(f"{file}: the tensor {name} is stored as {kind}, which is not supported; use a floating-point checkpoint")
        return tensor

    def where(self, name: str) -> str:
        return str(self._files.get(name, self._path))

    def close(self) -> None:
        self._shard = None

    def _load(self, file: Path) -> Mapping[str, Tensor]:
        if self._shard is None or self._shard[0] != file:
            self._shard = None  # before the next one is loaded
            self._shard = (file, _tensors_in(file))
        return self._shard[1]


def _tensors_in(file: Path) -> Mapping[str, Tensor]:
    must_open(file)
    try:
        with warnings.catch_warnings():
            # torch warns of unusual pickles before it refuses them; the refusal says it.
            warnings.simplefilter("ignore")
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError:
        raise ModelError(f"{file}: holds something other than tensors and is not run; convert it to safetensors") from None
    except _DAMAGE as error:
        raise ModelError(f"{file}: not a whole PyTorch checkpoint ({type(error).__name__}); fetch it again") from None
    if not isinstance(content, Mapping):
        raise ModelError(f"{file}: holds a {type(content).__name__}, not a mapping from names to tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ModelError(f"{file}: the entry {shown(str(name))} is no tensor but a {type(value).__name__}")
    return content
