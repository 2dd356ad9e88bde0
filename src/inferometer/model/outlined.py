"""What architectures that are only estimated have in common: sizes of a configuration as a spec says them."""

from __future__ import annotations

from typing import Any

from inferometer.model.families.options import Options
from inferometer.model.spec import Experts, ModelSpec, Rotary

_THETA = 10_000.0
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
"""What most of them must state."""


def llama_like(options: Options, *, family: str, experts: Experts | None = None, **changes: Any) -> ModelSpec:
    """Gated, RMS norms, rotary positions: what most of these are, but for `changes`."""
    options.require(*SIZES)
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    layers = options.layers("num_hidden_layers")
    head_size = options.optional_size("head_dim") or options.head_size(hidden, heads, "num_attention_heads")
    window, unwindowed = _windows(options, layers)
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": options.optional_size("num_key_value_heads") or heads,
        "head_size": head_size,
        "feed_forward": options.size("intermediate_size"),
        "vocabulary": options.size("vocab_size"),
        "positions": Rotary(options.number("rope_theta", _THETA) if options.raw("rope_theta") is not None else _THETA),
        "norm": "rms",
        "norm_epsilon": 1e-6,
        "activation": "silu",
        "context_limit": options.optional_size("max_position_embeddings"),
        "embedding": hidden,
        "attention_scale": head_size**-0.5,
        "gated": True,
        "qkv_bias": options.flag("attention_bias", False),
        "output_bias": False,
        "feed_forward_bias": False,
        "tied_head": options.flag("tie_word_embeddings", False),
        "sliding_window": window,
        "unwindowed_layers": unwindowed,
        "experts": experts,
    }
    return options.spec(family=family, outline=True, **(fields | changes))


def _windows(options: Options, layers: int) -> tuple[int | None, int]:
    """The window and how many layers look at everything."""
    window = options.optional_size("sliding_window")
    if window is None or options.raw("use_sliding_window") is False:
        return None, 0
    kinds = options.raw("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise options.malformed("layer_types", f"a list with one entry for each of {layers} layers")
        full = sum(kind == "full_attention" for kind in kinds)
    else:
        every = options.optional_size("sliding_window_pattern") or options.optional_size("_sliding_window_pattern")
        full = layers // every if every else 0
    return (window, full) if full < layers else (None, 0)


def ordinary_layers(options: Options, layers: int, every: int) -> int:
    """How many layers have an ordinary block: those named, and with a step above 1 those between."""
    named = options.raw("mlp_only_layers") or []
    if not isinstance(named, list):
        raise options.malformed("mlp_only_layers", "a list of layers")
    return min(layers, max(len(named), layers - layers // every))


def mixture(options: Options, count: int, per_token: int, width: int, *, shared: int = 0, dense_layers: int = 0) -> Experts:
    if per_token > count and "num_experts_per_tok" not in options:
        raise options.unfitting("num_experts_per_tok", per_token, f"{count} experts")
    try:
        return Experts(count=count, per_token=per_token, feed_forward=width, shared=shared, dense_layers=dense_layers)
    except ValueError as error:
        raise options.error(str(error)) from None


def ungated(options: Options, *, family: str, hidden: int, heads: int, layers: int, inner: int, **changes: Any) -> ModelSpec:
    """Layer norms and an ungated block, with rotary positions: GPT-NeoX, GPT-J, Falcon, Phi."""
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_size": options.head_size(hidden, heads, "num_attention_heads"),
        "feed_forward": inner,
        "vocabulary": options.size("vocab_size"),
        "positions": Rotary(_THETA),
        "norm": "layer",
        "norm_epsilon": 1e-5,
        "activation": "gelu",
        "context_limit": options.optional_size("max_position_embeddings", options.optional_size("n_positions", 2048)),
        "embedding": hidden,
        "attention_scale": (hidden // heads) ** -0.5,
        "tied_head": options.flag("tie_word_embeddings", False),
    }
    return options.spec(family=family, outline=True, **(fields | changes))
