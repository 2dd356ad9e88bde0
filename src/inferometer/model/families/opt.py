"""OPT: learned positions two rows in, biases and affine norms that can be absent, and the 350m's norm after with a narrow embedding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inferometer.model.checkpoint import Family, Piece
from inferometer.model.families.options import Options
from inferometer.model.spec import LearnedPositions, ModelSpec

_VERSION = re.compile(r"(^|\.)decoder\.version$")


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name)
    options.require_runnable(("OPTForCausalLM", "OPTModel"))
    options.require("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "vocab_size")
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    head_size = options.head_size(hidden, heads, "num_attention_heads")
    positions = options.size("max_position_embeddings", 2048)
    norm_before = options.flag("do_layer_norm_before", True)
    final_norm_removed = options.flag("_remove_final_layer_norm", False)
    bias = options.flag("enable_bias", True)
    return options.spec(
        family="opt",
        layers=options.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        feed_forward=options.size("ffn_dim"),
        vocabulary=options.size("vocab_size"),
        positions=LearnedPositions(positions, offset=2),
        norm="layer",
        norm_epsilon=1e-5,
        activation=options.activation("activation_function", "relu"),
        context_limit=positions,
        embedding=options.optional_size("word_embed_proj_dim") or hidden,
        attention_scale=head_size**-0.5,
        norm_placement="pre" if norm_before else "post",
        norm_affine=options.flag("layer_norm_elementwise_affine", True),
        final_norm=norm_before and not final_norm_removed,
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=bias,
        tied_head=options.flag("tie_word_embeddings", True),
    )


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner, base = spec.hidden, spec.feed_forward, "model.decoder"
    positions = spec.positions
    assert isinstance(positions, LearnedPositions)
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece(f"{base}.embed_tokens.weight", (spec.vocabulary, spec.embedding)),),
        "embedding.position.weight": (Piece(f"{base}.embed_positions.weight", (positions.count + positions.offset, hidden)),),
    }
    if spec.embedding != hidden:
        pieces["embedding.projection.weight"] = (Piece(f"{base}.project_in.weight", (hidden, spec.embedding)),)
        pieces["head.projection.weight"] = (Piece(f"{base}.project_out.weight", (spec.embedding, hidden)),)
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"{base}.layers.{i}"
        qkv = tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv")
        pieces |= _norm(spec, f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
        pieces |= _linear(spec, f"{ours}.attention.qkv", qkv, (hidden, hidden))
        pieces |= _linear(spec, f"{ours}.attention.output", (f"{theirs}.self_attn.out_proj",), (hidden, hidden))
        pieces |= _norm(spec, f"{ours}.feed_forward_norm", f"{theirs}.final_layer_norm")
        pieces |= _linear(spec, f"{ours}.feed_forward.up", (f"{theirs}.fc1",), (inner, hidden))
        pieces |= _linear(spec, f"{ours}.feed_forward.down", (f"{theirs}.fc2",), (hidden, inner))
    if spec.final_norm:
        pieces |= _norm(spec, "final_norm", f"{base}.final_layer_norm")
    if not spec.tied_head:
        pieces["head.weight"] = (Piece("lm_head.weight", (spec.vocabulary, spec.embedding)),)
    return pieces


def _linear(spec: ModelSpec, ours: str, theirs: tuple[str, ...], shape: tuple[int, int]) -> dict[str, tuple[Piece, ...]]:
    pieces = {f"{ours}.weight": tuple(Piece(f"{name}.weight", shape) for name in theirs)}
    if spec.qkv_bias:  # one option decides for all linear layers
        pieces[f"{ours}.bias"] = tuple(Piece(f"{name}.bias", shape[:1]) for name in theirs)
    return pieces


def _norm(spec: ModelSpec, ours: str, theirs: str) -> dict[str, tuple[Piece, ...]]:
    if not spec.norm_affine:
        return {}
    return {f"{ours}.{part}": (Piece(f"{theirs}.{part}", (spec.hidden,)),) for part in ("weight", "bias")}


def _ignored(name: str, spec: ModelSpec) -> bool:
    return (spec.tied_head and name == "lm_head.weight") or _VERSION.search(name) is not None


OPT = Family("opt", ("opt",), _read, _pieces, "model.", _ignored)
