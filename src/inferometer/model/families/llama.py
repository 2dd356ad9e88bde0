"""Llama, and Mistral and Qwen2, which are Llama with other biases and a sliding window."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferometer.model.checkpoint import Family, Piece
from inferometer.model.families.options import Options
from inferometer.model.families.rotary import read_rotary
from inferometer.model.spec import ModelSpec

_FREQUENCIES = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
_LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What a model_type's configuration class assumes; kv_heads None: as many as heads."""

    architectures: tuple[str, ...]
    kv_heads: int | None
    positions: int
    window: int | None = None


_DEFAULTS = {
    "llama": _Defaults(("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"), None, 2048),
    "mistral": _Defaults(("MistralForCausalLM", "MistralModel"), 8, 131_072, window=4096),
    "qwen2": _Defaults(("Qwen2ForCausalLM", "Qwen2Model"), 32, 32_768, window=4096),
}


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name)
    kind = config["model_type"]
    defaults = _DEFAULTS[kind]
    options.require_runnable(defaults.architectures)
    options.require("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    head_size = options.optional_size("head_dim") or options.head_size(hidden, heads, "num_attention_heads")
    layers = options.layers("num_hidden_layers")
    kv_heads = options.optional_size("num_key_value_heads", defaults.kv_heads) or heads
    options.check_kv_heads(heads, kv_heads)
    rotary, context_limit = read_rotary(options, positions=options.size("max_position_embeddings", defaults.positions), head_size=head_size)
    attention_bias = kind == "llama" and options.flag("attention_bias", False)
    return options.spec(
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=options.size("intermediate_size"),
        vocabulary=options.size("vocab_size"),
        positions=rotary,
        norm="rms",
        norm_epsilon=options.number("rms_norm_eps", 1e-6, positive=False),
        activation=options.activation("hidden_act", "silu"),
        context_limit=context_limit,
        embedding=hidden,
        attention_scale=head_size**-0.5,
        gated=True,
        qkv_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias,
        feed_forward_bias=kind == "llama" and options.flag("mlp_bias", False),
        tied_head=options.flag("tie_word_embeddings", False),
        sliding_window=_window(options, kind, layers, defaults.window),
    )


def _window(options: Options, kind: str, layers: int, default: int | None) -> int | None:
    """The window of the layers that slide, None if none does."""
    window = options.optional_size("sliding_window", default)
    if kind == "qwen2" and not options.flag("use_sliding_window", False):
        window = None
    kinds = options.raw("layer_types")
    if kinds is None:
        if kind == "qwen2" and window is not None:
            full = options.raw("max_window_layers", 28)
            if isinstance(full, bool) or not isinstance(full, int) or full < 0:
                raise options.malformed("max_window_layers", "a whole number that is not negative")
            return window if full < layers else None
        return window
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise options.malformed("layer_types", f"a list with one entry for each of {layers} layers")
    for entry in kinds:
        if entry not in _LAYER_KINDS:
            raise options.error(f"layer_types holds {entry!r}, which is not supported: the kinds are {', '.join(_LAYER_KINDS)}")
    slides = "sliding_attention" in kinds
    if slides and window is None:
        raise options.error("layer_types holds 'sliding_attention' but sliding_window is off")
    return window if slides or kind != "qwen2" else None


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner, query, kv = spec.hidden, spec.feed_forward, spec.query_size, spec.kv_size
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece("model.embed_tokens.weight", (spec.vocabulary, hidden)),),
    }
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        qkv = {f"{attention}.q_proj": query, f"{attention}.k_proj": kv, f"{attention}.v_proj": kv}
        pieces[f"{ours}.attention_norm.weight"] = (Piece(f"{theirs}.input_layernorm.weight", (hidden,)),)
        pieces |= _linear(f"{ours}.attention.qkv", qkv, hidden, spec.qkv_bias)
        pieces |= _linear(f"{ours}.attention.output", {f"{attention}.o_proj": hidden}, query, spec.output_bias)
        pieces[f"{ours}.feed_forward_norm.weight"] = (Piece(f"{theirs}.post_attention_layernorm.weight", (hidden,)),)
        gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}
        pieces |= _linear(f"{ours}.feed_forward.up", gate_up, hidden, spec.feed_forward_bias)
        pieces |= _linear(f"{ours}.feed_forward.down", {f"{mlp}.down_proj": hidden}, inner, spec.feed_forward_bias)
    pieces["final_norm.weight"] = (Piece("model.norm.weight", (hidden,)),)
    if not spec.tied_head:
        pieces["head.weight"] = (Piece("lm_head.weight", (spec.vocabulary, hidden)),)
    return pieces


def _linear(ours: str, theirs: Mapping[str, int], inputs: int, bias: bool) -> dict[str, tuple[Piece, ...]]:
    """`theirs` gives each checkpoint matrix and its outputs, stacked in order."""
    pieces = {f"{ours}.weight": tuple(Piece(f"{name}.weight", (outputs, inputs)) for name, outputs in theirs.items())}
    if bias:
        pieces[f"{ours}.bias"] = tuple(Piece(f"{name}.bias", (outputs,)) for name, outputs in theirs.items())
    return pieces


def _ignored(name: str, spec: ModelSpec) -> bool:
    return (spec.tied_head and name == "lm_head.weight") or _FREQUENCIES.search(name) is not None


LLAMA = Family("llama", tuple(_DEFAULTS), _read, _pieces, "model.", _ignored)
