"""Folders of tiny models without weights, for runs with dummy ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": 300, "max_position_embeddings": 64, "tie_word_embeddings": True,
    },
    "bloom": {"model_type": "bloom", "hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": 300},
    "opt": {
        "model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "vocab_size": 300,
        "max_position_embeddings": 64, "word_embed_proj_dim": 16, "do_layer_norm_before": False,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 64},
    "gpt_bigcode": {
        "model_type": "gpt_bigcode", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 64, "multi_query": True,
    },
    "bert": {
        "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": 300, "max_position_embeddings": 64,
    },
}  # fmt: skip


def tiny_model(folder: Path, family: str, **changes: Any) -> Path:
    """Writes the configuration of a model of a few thousand parameters and returns its folder."""
    path = folder / f"tiny-{family}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIGS[family], **changes}))
    return path
