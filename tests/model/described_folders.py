"""Folders with a tiny configuration, and the words that refuse a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import ModelError
from inferometer.model.description import describe

TINY: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 61,
    "n_positions": 32,
    "eos_token_id": 3,
}


def folder(path: Path, config: Any = TINY, **files: Any) -> Path:
    """A new folder with that configuration, and further JSON files by their names."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(model: str | None) -> str:
    """The one line that a model is refused with."""
    with pytest.raises(ModelError) as caught:
        describe(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)
