"""The families of models that are estimated and not run, by their configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferometer.model.families.options import LARGEST_SIZE, Options
from inferometer.model.outlined import SIZES, llama_like, mixture, ordinary_layers, ungated
from inferometer.model.spec import Latent, LearnedPositions, ModelSpec

__all__ = ["OUTLINED"]

_UNSTATED_BY_GEMMA_3 = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
"""What published files leave out of the text model's part, as that was written without what is its class's default."""


def _mixtral(options: Options) -> ModelSpec:
    options.require(*SIZES, "num_local_experts")
    experts = mixture(options, options.size("num_local_experts"), options.size("num_experts_per_tok", 2), options.size("intermediate_size"))
    return llama_like(options, family="mixtral", experts=experts)


def _qwen3(options: Options) -> ModelSpec:
    return llama_like(options, family="qwen3", query_key_norm=True)


def _qwen_moe(options: Options) -> ModelSpec:
    options.require(*SIZES, "num_experts", "moe_intermediate_size")
    third = options.raw("model_type") == "qwen3_moe"
    every = options.size("decoder_sparse_step", 1)
    experts = mixture(
        options,
        options.size("num_experts"),
        options.size("num_experts_per_tok", 8 if third else 4),
        options.size("moe_intermediate_size"),
        shared=0 if third else options.size("shared_expert_intermediate_size", 5632),
        dense_layers=ordinary_layers(options, options.layers("num_hidden_layers"), every),
    )
    return llama_like(options, family=str(options.raw("model_type")), experts=experts, query_key_norm=third, qkv_bias=not third)


def _gpt_oss(options: Options) -> ModelSpec:
    options.require(*SIZES, "num_local_experts")
    experts = mixture(options, options.size("num_local_experts"), options.size("num_experts_per_tok", 4), options.size("intermediate_size"))
    return llama_like(options, family="gpt_oss", experts=experts, qkv_bias=True, output_bias=True, feed_forward_bias=True)


def _deepseek(options: Options) -> ModelSpec:
    """Without the module that predicts a further token, which plain generation does not load."""
    options.require(
        *SIZES, "n_routed_experts", "moe_intermediate_size", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"
    )
    if options.size("moe_layer_freq", 1) != 1:
        raise options.unsupported("moe_layer_freq", "experts in some layers alone are not estimated")
    third = options.raw("model_type") == "deepseek_v3"
    latent = Latent(
        rank=options.size("kv_lora_rank"),
        rotated=options.size("qk_rope_head_dim"),
        unrotated=options.size("qk_nope_head_dim"),
        values=options.size("v_head_dim"),
        query_rank=options.optional_size("q_lora_rank"),
    )
    width = options.size("moe_intermediate_size")
    dense = _count(options, "first_k_dense_replace", 3 if third else 0)
    experts = mixture(
        options,
        options.size("n_routed_experts"),
        options.size("num_experts_per_tok", 8 if third else 6),
        width,
        shared=0 if options.raw("n_shared_experts") is None else _count(options, "n_shared_experts", 0) * width,
        dense_layers=min(options.layers("num_hidden_layers"), dense),
    )
    size = latent.unrotated + latent.rotated
    return llama_like(
        options, family=str(options.raw("model_type")), experts=experts, latent=latent, kv_heads=1, head_size=size,
        attention_scale=size**-0.5, qkv_bias=False,
    )  # fmt: skip


def _count(options: Options, option: str, default: int) -> int:
    """A whole number, of which 0 is one."""
    value = options.raw(option, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_SIZE:
        raise options.malformed(option, f"a whole number from 0 to {LARGEST_SIZE}")
    return value


def _gemma(options: Options) -> ModelSpec:
    kind = str(options.raw("model_type"))
    third = kind.startswith("gemma3")
    if options.raw("text_config") is not None:
        text = options.raw("text_config")
        if not isinstance(text, Mapping):
            raise options.malformed("text_config", "an object")
        whole = Options({**_UNSTATED_BY_GEMMA_3, **text, "model_type": "gemma3_text"}, options.name)
        heads, kv_heads = whole.size("num_attention_heads"), whole.optional_size("num_key_value_heads")
        if kv_heads is not None:
            Options(text, options.name).check_kv_heads(heads, kv_heads)
        return _gemma(whole)
    options.require(*SIZES)
    changes: dict[str, Any] = {"layer_norms": 2 if kind == "gemma" else 4, "query_key_norm": third, "activation": "gelu_tanh"}
    changes["head_size"] = options.optional_size("head_dim") or 256
    changes["attention_scale"] = changes["head_size"] ** -0.5
    changes["tied_head"] = options.flag("tie_word_embeddings", True)
    if kind == "gemma2" and options.raw("layer_types") is None and options.raw("sliding_window", 4096):
        layers = options.layers("num_hidden_layers")
        changes |= {"sliding_window": options.size("sliding_window", 4096), "unwindowed_layers": layers // 2}
    if third and options.raw("layer_types") is None and options.raw("sliding_window", 4096):
        layers = options.layers("num_hidden_layers")
        every = options.optional_size("sliding_window_pattern") or options.optional_size("_sliding_window_pattern") or 6
        changes |= {"sliding_window": options.size("sliding_window", 4096), "unwindowed_layers": layers // every}
    return llama_like(options, family=kind, **changes)


def _gpt_neox(options: Options) -> ModelSpec:
    options.require(*SIZES)
    hidden, inner = options.size("hidden_size"), options.size("intermediate_size")
    heads, layers = options.size("num_attention_heads"), options.layers("num_hidden_layers")
    return ungated(options, family="gpt_neox", hidden=hidden, heads=heads, layers=layers, inner=inner)


def _gptj(options: Options) -> ModelSpec:
    options.require("n_embd", "n_layer", "n_head", "vocab_size")
    hidden = options.size("n_embd")
    inner = options.optional_size("n_inner") or 4 * hidden
    heads, layers = options.size("n_head"), options.layers("n_layer")
    return ungated(
        options, family="gptj", hidden=hidden, heads=heads, layers=layers, inner=inner, layer_norms=1, qkv_bias=False, output_bias=False
    )


def _phi(options: Options) -> ModelSpec:
    options.require(*SIZES)
    hidden, inner = options.size("hidden_size"), options.size("intermediate_size")
    heads, layers = options.size("num_attention_heads"), options.layers("num_hidden_layers")
    kv_heads = options.optional_size("num_key_value_heads") or heads
    return ungated(options, family="phi", hidden=hidden, heads=heads, layers=layers, inner=inner, layer_norms=1, kv_heads=kv_heads)


def _falcon(options: Options) -> ModelSpec:
    options.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    layers = options.layers("num_hidden_layers")
    new = options.flag("new_decoder_architecture", False)
    kv_heads = (options.optional_size("num_kv_heads") or heads) if new else (1 if options.flag("multi_query", True) else heads)
    inner = options.optional_size("ffn_hidden_size") or 4 * hidden
    bias = options.flag("bias", False)
    return ungated(
        options, family="falcon", hidden=hidden, heads=heads, layers=layers, inner=inner, kv_heads=kv_heads, layer_norms=2 if new else 1,
        qkv_bias=bias, output_bias=bias, feed_forward_bias=bias, tied_head=options.flag("tie_word_embeddings", True),
    )  # fmt: skip


def _phi3(options: Options) -> ModelSpec:
    return llama_like(options, family="phi3")


def _mpt(options: Options) -> ModelSpec:
    options.require("d_model", "n_layers", "n_heads", "vocab_size")
    hidden, heads = options.size("d_model"), options.size("n_heads")
    layers = options.layers("n_layers")
    ratio = options.size("expansion_ratio", 4)
    return ungated(
        options, family="mpt", hidden=hidden, heads=heads, layers=layers, inner=ratio * hidden, tied_head=True,
        qkv_bias=False, output_bias=False, feed_forward_bias=False,
        context_limit=options.optional_size("max_seq_len", 2048),
    )  # fmt: skip


def _gpt_neo(options: Options) -> ModelSpec:
    options.require("hidden_size", "num_layers", "num_heads", "vocab_size")
    hidden = options.size("hidden_size")
    positions = options.size("max_position_embeddings", 2048)
    inner = options.optional_size("intermediate_size") or 4 * hidden
    heads, layers = options.size("num_heads"), options.layers("num_layers")
    return ungated(
        options, family="gpt_neo", hidden=hidden, heads=heads, layers=layers, inner=inner, positions=LearnedPositions(positions),
        context_limit=positions, tied_head=True, qkv_bias=False,
    )  # fmt: skip


OUTLINED: Mapping[str, Callable[[Options], ModelSpec]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma3_text": _gemma,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "gpt_neo": _gpt_neo,
    "phi": _phi,
    "phi3": _phi3,
    "falcon": _falcon,
    "mpt": _mpt,
}
"""The readers by "model_type"."""
