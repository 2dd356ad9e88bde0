"""BLOOM and BLOOMZ: ALiBi, a norm after the embedding, query, key and value interleaved by head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inferometer.model.checkpoint import Family, Piece
from inferometer.model.families.options import Options
from inferometer.model.spec import Alibi, ModelSpec

_SPELLINGS = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
_BUFFER = re.compile(r"(^|\.)self_attention\.(masked_bias|bias|alibi)$")


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name, _SPELLINGS)
    options.require_runnable(("BloomForCausalLM", "BloomModel"))
    options.require("hidden_size", "n_layer", "n_head", "vocab_size")
    hidden, heads = options.size("hidden_size"), options.size("n_head")
    head_size = options.head_size(hidden, heads, "n_head")
    if options.flag("slow_but_exact", False) and options.size("pretraining_tp", 1) > 1:
        raise options.unsupported("slow_but_exact", "with pretraining_tp above 1 it leaves out biases")
    return options.spec(
        family="bloom",
        layers=options.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        feed_forward=4 * hidden,
        vocabulary=options.size("vocab_size"),
        positions=Alibi(),
        norm="layer",
        norm_epsilon=options.number("layer_norm_epsilon", 1e-5, positive=False),
        activation="gelu_tanh",
        context_limit=None,
        embedding=hidden,
        attention_scale=head_size**-0.5,
        residual_after_norm=options.flag("apply_residual_connection_post_layernorm", False),
        embedding_norm=True,
        tied_head=options.flag("tie_word_embeddings", True),
    )


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner, base = spec.hidden, spec.feed_forward, "transformer"
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece(f"{base}.word_embeddings.weight", (spec.vocabulary, hidden)),),
    }
    pieces |= _pair("embedding.norm", f"{base}.word_embeddings_layernorm", (hidden,))
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"{base}.h.{i}"
        qkv = f"{theirs}.self_attention.query_key_value"
        pieces |= _pair(f"{ours}.attention_norm", f"{theirs}.input_layernorm", (hidden,))
        pieces[f"{ours}.attention.qkv.weight"] = (Piece(f"{qkv}.weight", (3 * hidden, hidden), "heads"),)
        pieces[f"{ours}.attention.qkv.bias"] = (Piece(f"{qkv}.bias", (3 * hidden,), "heads"),)
        pieces |= _pair(f"{ours}.attention.output", f"{theirs}.self_attention.dense", (hidden, hidden))
        pieces |= _pair(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", (hidden,))
        pieces |= _pair(f"{ours}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h", (inner, hidden))
        pieces |= _pair(f"{ours}.feed_forward.down", f"{theirs}.mlp.dense_4h_to_h", (hidden, inner))
    pieces |= _pair("final_norm", f"{base}.ln_f", (hidden,))
    if not spec.tied_head:
        pieces["head.weight"] = (Piece("lm_head.weight", (spec.vocabulary, hidden)),)
    return pieces


def _pair(ours: str, theirs: str, shape: tuple[int, ...]) -> dict[str, tuple[Piece, ...]]:
    return {f"{ours}.weight": (Piece(f"{theirs}.weight", shape),), f"{ours}.bias": (Piece(f"{theirs}.bias", shape[:1]),)}


def _ignored(name: str, spec: ModelSpec) -> bool:
    return (spec.tied_head and name == "lm_head.weight") or _BUFFER.search(name) is not None


BLOOM = Family("bloom", ("bloom",), _read, _pieces, "transformer.", _ignored)
