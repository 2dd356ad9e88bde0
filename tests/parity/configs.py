"""Small random models of every family and variant, as transformers configurations."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

VOCABULARY = 131

BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 3, "n_head": 4}
OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "word_embed_proj_dim": 48,
    "num_hidden_layers": 3,
    "ffn_dim": 80,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 160}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 160,
}


def _rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **options}}


DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", BLOOM),
    "bloom-residual-after-norm": ("bloom", BLOOM | {"apply_residual_connection_post_layernorm": True}),
    "bloom-six-heads": ("bloom", BLOOM | {"n_head": 6}),
    "bloom-twelve-heads-of-four": ("bloom", BLOOM | {"n_head": 12}),
    "bloom-one-head": ("bloom", BLOOM | {"n_head": 1}),
    "opt": ("opt", OPT),
    "opt-350m-wiring": ("opt", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    "opt-projection": ("opt", OPT | {"word_embed_proj_dim": 64}),
    "opt-no-biases": ("opt", OPT | {"enable_bias": False}),
    "opt-plain-norms": ("opt", OPT | {"layer_norm_elementwise_affine": False}),
    "opt-no-final-norm": ("opt", OPT | {"_remove_final_layer_norm": True}),
    "opt-gelu": ("opt", OPT | {"activation_function": "gelu"}),
    "gpt2": ("gpt2", GPT2),
    "gpt2-scaled-by-layer": ("gpt2", GPT2 | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "gpt2-unscaled": ("gpt2", GPT2 | {"scale_attn_weights": False}),
    "gpt2-relu-inner": ("gpt2", GPT2 | {"activation_function": "relu", "n_inner": 100}),
    "gpt2-silu": ("gpt2", GPT2 | {"activation_function": "silu"}),
    "gpt2-untied": ("gpt2", GPT2 | {"tie_word_embeddings": False}),
    "gpt2-head-size-sixteen": ("gpt2", GPT2 | {"n_head": 3}),
    "gpt_bigcode-mqa": ("gpt_bigcode", GPT2),
    "gpt_bigcode-mha": ("gpt_bigcode", GPT2 | {"multi_query": False}),
    "gpt_bigcode-inner": ("gpt_bigcode", GPT2 | {"n_inner": 70, "activation_function": "gelu"}),
    "llama-gqa": ("llama", LLAMA),
    "llama-mha": ("llama", LLAMA | {"num_key_value_heads": 4}),
    "llama-mqa-tied": ("llama", LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-nine-heads-three-kv": ("llama", LLAMA | {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3}),
    "llama-biases": ("llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", LLAMA | {"head_dim": 22}),
    "llama-theta": ("llama", LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama-linear": ("llama", LLAMA | _rope("linear", factor=3.0)),
    "llama-dynamic": ("llama", LLAMA | {"max_position_embeddings": 24} | _rope("dynamic", factor=2.0)),
    "llama-llama3": (
        "llama",
        LLAMA | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-yarn": ("llama", LLAMA | _rope("yarn", factor=4.0, original_max_position_embeddings=40)),
    "llama-yarn-mscale": (
        "llama",
        LLAMA
        | _rope("yarn", factor=4.0, original_max_position_embeddings=40, mscale=0.7, mscale_all_dim=1.2, truncate=False, beta_fast=16),
    ),
    "llama-gelu": ("llama", LLAMA | {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral": ("mistral", LLAMA | {"sliding_window": None}),
    "mistral-window": ("mistral", LLAMA | {"sliding_window": 128}),
    "qwen2": ("qwen2", LLAMA),
}

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", BERT),
    "bert-relu": ("bert", BERT | {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "bert-one-type": ("bert", BERT | {"type_vocab_size": 1}),
    "bert-six-heads": ("bert", BERT | {"num_attention_heads": 6}),
}


def config(kind: str, options: dict[str, Any]) -> PreTrainedConfig:
    """The transformers configuration; end and padding tokens off, so that nothing stops early."""
    private = {key: value for key, value in options.items() if key.startswith("_")}
    made = AutoConfig.for_model(kind, **(options | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}))
    for key, value in private.items():
        setattr(made, key, value)
    return made
