"""Checkpoints of tiny models of every family, with random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from inferometer.model.config import read_spec
from inferometer.model.families import family
from inferometer.model.spec import ModelSpec
from inferometer.nn.dummy import DummySource
from inferometer.nn.safetensors import SafetensorsSource

CONFIGS: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 24, "n_layer": 2, "n_head": 4},
    "opt": {"hidden_size": 24, "word_embed_proj_dim": 16, "num_hidden_layers": 2, "ffn_dim": 48, "num_attention_heads": 4},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 50, "n_positions": 16},
    "gpt_bigcode": {"n_embd": 24, "n_layer": 2, "n_head": 4, "multi_query": False, "n_positions": 16},
    "llama": {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    },
    "bert": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4},
}


def spec_of(kind: str, **options: Any) -> ModelSpec:
    return read_spec({"model_type": kind, "vocab_size": 31, **CONFIGS[kind], **options}, kind)


def checkpoint(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    source = DummySource(spec, family(spec.family), seed=seed)
    return {name: source.read(name, "cpu", torch.float32) for name in source.tensors()}


def saved(folder: Path, tensors: dict[str, Tensor]) -> SafetensorsSource:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return SafetensorsSource(folder / "model.safetensors")
