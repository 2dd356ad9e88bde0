"""Weights in files, whole and in shards, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.nn.source import CheckpointSource


def example() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(6, 4, generator=generator).half(),
        "b.weight": torch.randn(5, generator=generator),
        "c.weight": torch.randn(2, 3, generator=generator).bfloat16(),
        "d.weight": torch.randn(2, 2, generator=generator).double(),
        "mask": torch.tril(torch.ones(3, 3, dtype=torch.bool)),
    }


def save_bin(tensors: dict[str, Tensor], path: Path) -> None:
    torch.save(tensors, path)


def sharded(folder: Path, name: str, save: Callable[[dict[str, Tensor], Path], None], tensors: dict[str, Tensor]) -> Path:
    stem, suffix = name.rsplit(".", 1)
    keys = list(tensors)
    weight_map = {}
    for number, part in enumerate((keys[::2], keys[1::2]), 1):
        file = f"{stem}-0000{number}-of-00002.{suffix}"
        save({key: tensors[key] for key in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / f"{name}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def check(source: CheckpointSource, tensors: dict[str, Tensor]) -> None:
    assert dict(source.tensors()) == {name: tuple(t.shape) for name, t in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            found = source.read(name, "cpu", torch.float32)
            assert found.dtype is torch.float32
            assert torch.equal(found, tensor.float())
            assert torch.equal(source.read(name, "cpu", tensor.dtype), tensor)
    source.close()


def message(error: pytest.ExceptionInfo[ModelError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
