"""The configurations of tiny GGUF files, and why some have none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gguf_models import tiny, write
from inferometer.errors import ModelError
from inferometer.model.gguf import gguf_config


def config(tmp_path: Path, architecture: str = "llama", keys: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    tensors = more.pop("tensors", None) or tiny(architecture)
    return gguf_config(write(tmp_path / "m.gguf", architecture, tensors, keys, **more))


def refusal(tmp_path: Path, architecture: str = "llama", keys: Mapping[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(ModelError) as caught:
        config(tmp_path, architecture, keys, **more)
    assert str(caught.value).startswith(f"{tmp_path / 'm.gguf'}: ")
    return str(caught.value)
