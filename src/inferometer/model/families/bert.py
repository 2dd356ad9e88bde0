"""BERT: an encoder with norms after, token types and a pooler; heads for its training tasks are left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from inferometer.model.checkpoint import Family, Piece
from inferometer.model.families.options import Options
from inferometer.model.spec import LearnedPositions, ModelSpec

_ARCHITECTURES = ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForNextSentencePrediction", "BertLMHeadModel")
_IGNORED = re.compile(r"^cls\.|^(bert\.)?embeddings\.(position_ids|token_type_ids)$")
_POOLER = re.compile(r"^(bert\.)?pooler\.")


def _read(config: Mapping[str, Any], name: str) -> ModelSpec:
    options = Options(config, name)
    options.require_runnable(_ARCHITECTURES)
    if options.flag("is_decoder", False):
        raise options.unsupported("is_decoder", "BERT is run as an encoder")
    if options.raw("position_embedding_type", "absolute") != "absolute":
        raise options.unsupported("position_embedding_type", "BERT is run with absolute positions")
    options.require("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    head_size = options.head_size(hidden, heads, "num_attention_heads")
    positions = options.size("max_position_embeddings", 512)
    return options.spec(
        family="bert",
        layers=options.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        feed_forward=options.size("intermediate_size"),
        vocabulary=options.size("vocab_size"),
        positions=LearnedPositions(positions),
        norm="layer",
        norm_epsilon=options.number("layer_norm_eps", 1e-12, positive=False),
        activation=options.activation("hidden_act", "gelu"),
        context_limit=positions,
        embedding=hidden,
        attention_scale=head_size**-0.5,
        norm_placement="post",
        embedding_norm=True,
        final_norm=False,
        encoder=True,
        token_types=options.size("type_vocab_size", 2),
        pooler=True,
    )


def _pieces(spec: ModelSpec) -> Mapping[str, tuple[Piece, ...]]:
    hidden, inner = spec.hidden, spec.feed_forward
    positions = spec.positions
    assert isinstance(positions, LearnedPositions)
    pieces: dict[str, tuple[Piece, ...]] = {
        "embedding.token.weight": (Piece("embeddings.word_embeddings.weight", (spec.vocabulary, hidden)),),
        "embedding.position.weight": (Piece("embeddings.position_embeddings.weight", (positions.count, hidden)),),
        "embedding.token_type.weight": (Piece("embeddings.token_type_embeddings.weight", (spec.token_types, hidden)),),
    }
    pieces |= _pair("embedding.norm", ("embeddings.LayerNorm",), (hidden,))
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"encoder.layer.{i}"
        qkv = tuple(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        pieces |= _pair(f"{ours}.attention.qkv", qkv, (hidden, hidden))
        pieces |= _pair(f"{ours}.attention.output", (f"{theirs}.attention.output.dense",), (hidden, hidden))
        pieces |= _pair(f"{ours}.attention_norm", (f"{theirs}.attention.output.LayerNorm",), (hidden,))
        pieces |= _pair(f"{ours}.feed_forward.up", (f"{theirs}.intermediate.dense",), (inner, hidden))
        pieces |= _pair(f"{ours}.feed_forward.down", (f"{theirs}.output.dense",), (hidden, inner))
        pieces |= _pair(f"{ours}.feed_forward_norm", (f"{theirs}.output.LayerNorm",), (hidden,))
    if spec.pooler:
        pieces |= _pair("pooler", ("pooler.dense",), (hidden, hidden))
    return pieces


def _pair(ours: str, theirs: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, tuple[Piece, ...]]:
    return {
        f"{ours}.weight": tuple(Piece(f"{name}.weight", shape) for name in theirs),
        f"{ours}.bias": tuple(Piece(f"{name}.bias", shape[:1]) for name in theirs),
    }


def _ignored(name: str, spec: ModelSpec) -> bool:
    return _IGNORED.search(name) is not None or (not spec.pooler and _POOLER.search(name) is not None)


def _rename(name: str) -> str:
    # The first checkpoints, converted from TensorFlow, kept its names for a norm's parameters.
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


def _adapt(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    # Models saved for masked language modelling come without a pooler and their configuration does not say so.
    return spec if any(_POOLER.search(name) for name in names) else replace(spec, pooler=False)


BERT = Family("bert", ("bert",), _read, _pieces, "bert.", _ignored, _rename, _adapt)
