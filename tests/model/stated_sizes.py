"""The sizes that a configuration of each type must state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GPT = ("n_embd", "n_layer", "n_head", "vocab_size")
_LLAMA = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")

_DEEPSEEK = (
    *_LLAMA,
    "n_routed_experts",
    "moe_intermediate_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)

STATED: dict[str, tuple[str, ...]] = {
    "bloom": ("hidden_size", "n_layer", "n_head", "vocab_size"),
    "opt": ("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "vocab_size"),
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "bert": _LLAMA,
}
STATED_IN_OUTLINES: dict[str, tuple[str, ...]] = {
    "mixtral": (*_LLAMA, "num_local_experts"),
    "qwen2_moe": (*_LLAMA, "num_experts", "moe_intermediate_size"),
    "qwen3": _LLAMA,
    "qwen3_moe": (*_LLAMA, "num_experts", "moe_intermediate_size"),
    "gpt_oss": (*_LLAMA, "num_local_experts"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gemma": _LLAMA,
    "gemma2": _LLAMA,
    "gemma3": _LLAMA,
    "gemma3_text": _LLAMA,
    "gpt_neox": _LLAMA,
    "gptj": _GPT,
    "gpt_neo": ("hidden_size", "num_layers", "num_heads", "vocab_size"),
    "phi": _LLAMA,
    "phi3": _LLAMA,
    "falcon": ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    "mpt": ("d_model", "n_layers", "n_heads", "vocab_size"),
}


def sizes_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of this type that states those of `config` and nothing else."""
    return {"model_type": kind, **{size: config[size] for size in STATED[kind]}}
