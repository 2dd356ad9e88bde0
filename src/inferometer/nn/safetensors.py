"""Checkpoints in safetensors files, one or a sharded index, read through a memory map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.nn.shards import check_index, must_open, read_index
from inferometer.nn.source import Extent, prevailing_dtype

_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class SafetensorsSource:
    """The tensors of a `*.safetensors` file, or of the shards that a `*.safetensors.index.json` lists.

    Only headers are read at construction. The files stay mapped: pages come in as tensors are read and are the system's to drop.
    Raises ModelError for a damaged header, missing data, a missing shard, or a shard without a tensor that the index lists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        listed = read_index(path) if path.name.endswith(".index.json") else {}
        self._open: dict[Path, Any] = {}
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._kinds: dict[str, str] = {}
        for file in dict.fromkeys(listed.values()) if listed else [path]:
            handle = self._open[file] = _open(file)
            for name in handle.keys():  # noqa: SIM118 (not a mapping)
                # Tied weights may be in two shards; the index then says which one counts.
                if listed.get(name, file) == file:
                    part = handle.get_slice(name)
                    self._files[name], self._shapes[name], self._kinds[name] = file, tuple(part.get_shape()), part.get_dtype()
        check_index(path, listed, self._files)

    @property
    def dtype(self) -> torch.dtype | None:
        return prevailing_dtype((_DTYPES[kind], self._shapes[name]) for name, kind in self._kinds.items() if kind in _DTYPES)

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        self._check(name)
        return self.raw(name).to(device=device, dtype=dtype)

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        self._check(name)
        return self.raw(name, extent).to(device=device, dtype=dtype)

    def _check(self, name: str) -> None:
        if self._kinds[name] not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ModelError(
                f"{self.where(name)}: the tensor {name} is stored as {self._kinds[name]}, which is not supported, only {known}"
            )

    def raw(self, name: str, extent: Extent | None = None) -> Tensor:
        """The tensor on the CPU in the type it is stored in, or a part of it. Raises ModelError where it is damaged."""
        from safetensors import SafetensorError

        file = self._files[name]
        try:
            if extent is not None:
                part: Tensor = self._open[file].get_slice(name)[tuple(slice(start, stop) for start, stop in extent)]
                return part
            tensor: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise ModelError(f"{file}: the tensor {name} cannot be read: {' '.join(str(error).split())}") from None
        return tensor

    def where(self, name: str) -> str:
        return str(self._files.get(name, self._path))

    def close(self) -> None:
        self._open.clear()


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    must_open(file)
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{file}: not a whole safetensors file: {' '.join(str(error).split())}") from None
