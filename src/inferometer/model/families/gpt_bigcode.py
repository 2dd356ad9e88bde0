"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 with multi-query attention, or with query, key and value interleaved by head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inferometer.model.checkpoint import Family, Layout, Piece
from inferometer.model.families.options import Options
from inferometer.model.spec import LearnedPositions, ModelSpec

_SPELLINGS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
}
_BUFFER = re.compile(r"(^|\.)attn\.(masked_)?bias$|^(transformer\.)?bias$")


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name, _SPELLINGS)
    options.require_runnable(("GPTBigCodeForCausalLM", "GPTBigCodeLMHeadModel", "GPTBigCodeModel"))
    options.require("n_embd", "n_layer", "n_head", "vocab_size")
    hidden, heads = options.size("n_embd"), options.size("n_head")
    head_size = options.head_size(hidden, heads, "n_head")
    positions = options.size("n_positions", 1024)
    return options.spec(
        family="gpt_bigcode",
        layers=options.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=1 if options.flag("multi_query", True) else heads,
        head_size=head_size,
        feed_forward=options.optional_size("n_inner") or 4 * hidden,
        vocabulary=options.size("vocab_size"),
        positions=LearnedPositions(positions),
        norm="layer",
        norm_epsilon=options.number("layer_norm_epsilon", 1e-5, positive=False),
        activation=options.activation("activation_function", "gelu_pytorch_tanh"),
        context_limit=positions,
        embedding=hidden,
        attention_scale=head_size**-0.5 if options.flag("scale_attn_weights", True) else 1.0,
        tied_head=options.flag("tie_word_embeddings", True),
    )


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner, base = spec.hidden, spec.feed_forward, "transformer"
    positions = spec.positions
    assert isinstance(positions, LearnedPositions)
    rows = spec.query_size + 2 * spec.kv_size
    # With one head the two layouts are the same rows.
    layout: Layout = "rows" if spec.kv_heads == 1 else "heads"
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece(f"{base}.wte.weight", (spec.vocabulary, hidden)),),
        "embedding.position.weight": (Piece(f"{base}.wpe.weight", (positions.count, hidden)),),
    }
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"{base}.h.{i}"
        pieces |= _pair(f"{ours}.attention_norm", f"{theirs}.ln_1", (hidden,))
        pieces |= _pair(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", (rows, hidden), layout)
        pieces |= _pair(f"{ours}.attention.output", f"{theirs}.attn.c_proj", (hidden, hidden))
        pieces |= _pair(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", (hidden,))
        pieces |= _pair(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", (inner, hidden))
        pieces |= _pair(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", (hidden, inner))
    pieces |= _pair("final_norm", f"{base}.ln_f", (hidden,))
    if not spec.tied_head:
        pieces["head.weight"] = (Piece("lm_head.weight", (spec.vocabulary, hidden)),)
    return pieces


def _pair(ours: str, theirs: str, shape: tuple[int, ...], layout: Layout = "rows") -> dict[str, tuple[Piece, ...]]:
    return {
        f"{ours}.weight": (Piece(f"{theirs}.weight", shape, layout),),
        f"{ours}.bias": (Piece(f"{theirs}.bias", shape[:1], layout),),
    }


def _ignored(name: str, spec: ModelSpec) -> bool:
    return (spec.tied_head and name == "lm_head.weight") or _BUFFER.search(name) is not None


GPT_BIGCODE = Family("gpt_bigcode", ("gpt_bigcode",), _read, _pieces, "transformer.", _ignored)
