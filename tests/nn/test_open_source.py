"""Where the weights of a described model come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import CONFIGS, checkpoint, saved, spec_of

from inferometer.errors import ModelError, UserError
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from inferometer.nn.safetensors import SafetensorsSource


def folder_of(tmp_path: Path, kind: str) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 31, **CONFIGS[kind]}))
    return tmp_path


def test_open_source_chooses_by_the_description(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    spec = spec_of("llama")
    saved(folder, checkpoint(spec))
    description = describe(str(folder))
    assert isinstance(open_source(description), SafetensorsSource)
    dummy = open_source(description, weights="dummy", seed=3)
    assert torch.equal(dummy.read("model.norm.weight", "cpu", torch.float32), checkpoint(spec, seed=3)["model.norm.weight"])
    with pytest.raises(UserError, match="--weights must be auto or dummy, not 'zeros'"):
        open_source(description, weights="zeros")


@pytest.mark.parametrize(
    ("entry", "dtype"), [({"torch_dtype": "float16"}, torch.float16), ({"dtype": "bfloat16"}, torch.bfloat16), ({}, None)]
)
def test_dummy_weights_count_as_stored_in_the_configured_dtype(tmp_path: Path, entry: dict[str, str], dtype: torch.dtype | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 31, **CONFIGS["llama"], **entry}))
    assert open_source(describe(str(tmp_path)), weights="dummy").dtype is dtype


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights .*--weights dummy"):
        open_source(describe(str(folder_of(tmp_path, "gpt2"))))
