"""GPT-2: learned positions and matrices stored (inputs, outputs)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inferometer.model.checkpoint import Family, Piece
from inferometer.model.families.options import Options
from inferometer.model.spec import LearnedPositions, ModelSpec

_SPELLINGS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
}
_BUFFER = re.compile(r"(^|\.)attn\.(masked_)?bias$")


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name, _SPELLINGS)
    options.require_runnable(("GPT2LMHeadModel", "GPT2Model"))
    options.require("n_embd", "n_layer", "n_head", "vocab_size")
    hidden, heads = options.size("n_embd"), options.size("n_head")
    head_size = options.head_size(hidden, heads, "n_head")
    positions = options.size("n_positions", 1024)
    # Only the order of the same multiplications, and the precision they are done in, depends on this one.
    options.flag("reorder_and_upcast_attn", False)
    return options.spec(
        family="gpt2",
        layers=options.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        feed_forward=options.optional_size("n_inner") or 4 * hidden,
        vocabulary=options.size("vocab_size"),
        positions=LearnedPositions(positions),
        norm="layer",
        norm_epsilon=options.number("layer_norm_epsilon", 1e-5, positive=False),
        activation=options.activation("activation_function", "gelu_new"),
        context_limit=positions,
        embedding=hidden,
        attention_scale=head_size**-0.5 if options.flag("scale_attn_weights", True) else 1.0,
        scale_by_inverse_layer=options.flag("scale_attn_by_inverse_layer_idx", False),
        tied_head=options.flag("tie_word_embeddings", True),
    )


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner, base = spec.hidden, spec.feed_forward, "transformer"
    positions = spec.positions
    assert isinstance(positions, LearnedPositions)
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece(f"{base}.wte.weight", (spec.vocabulary, hidden)),),
        "embedding.position.weight": (Piece(f"{base}.wpe.weight", (positions.count, hidden)),),
    }
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"{base}.h.{i}"
        pieces |= _norm(f"{ours}.attention_norm", f"{theirs}.ln_1", hidden)
        pieces |= _transposed(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", hidden, 3 * hidden)
        pieces |= _transposed(f"{ours}.attention.output", f"{theirs}.attn.c_proj", hidden, hidden)
        pieces |= _norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", hidden)
        pieces |= _transposed(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", hidden, inner)
        pieces |= _transposed(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", inner, hidden)
    pieces |= _norm("final_norm", f"{base}.ln_f", hidden)
    if not spec.tied_head:
        pieces["head.weight"] = (Piece("lm_head.weight", (spec.vocabulary, hidden)),)
    return pieces


def _transposed(ours: str, theirs: str, inputs: int, outputs: int) -> dict[str, tuple[Piece, ...]]:
    return {
        f"{ours}.weight": (Piece(f"{theirs}.weight", (inputs, outputs), "columns"),),
        f"{ours}.bias": (Piece(f"{theirs}.bias", (outputs,)),),
    }


def _norm(ours: str, theirs: str, hidden: int) -> dict[str, tuple[Piece, ...]]:
    return {f"{ours}.{part}": (Piece(f"{theirs}.{part}", (hidden,)),) for part in ("weight", "bias")}


def _ignored(name: str, spec: ModelSpec) -> bool:
    return (spec.tied_head and name == "lm_head.weight") or _BUFFER.search(name) is not None


GPT2 = Family("gpt2", ("gpt2",), _read, _pieces, "transformer.", _ignored)
