"""GGUF metadata as a Hugging Face style configuration, for the architectures llama, gpt2 and bloom.

Names that llama.cpp's converter dropped or changed are given back: whoever reads the configuration need not know that it came
from a GGUF file. Settings outside the known ones are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from inferometer.errors import ModelError, shown
from inferometer.model.gguf_file import GgufFile, GgufTensor
from inferometer.model.gguf_keys import Keys
from inferometer.model.gguf_rope import rope_scaling

_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_COMPARED_AT_ONCE: Final = 1 << 22

_COMMON_KEYS: Final = frozenset(
    {
        "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "tensor_data_layout",
        "attention.head_count", "attention.head_count_kv", "attention.causal",
    }
)  # fmt: skip
_LLAMA_KEYS: Final = _COMMON_KEYS | {
    "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length", "attention.sliding_window",
    "expert_count", "expert_used_count", "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
}  # fmt: skip
_LAYER_NORM_KEYS: Final = _COMMON_KEYS | {"attention.layer_norm_epsilon"}


def gguf_config(path: Path | str) -> dict[str, Any]:
    """The configuration of the model in the GGUF file at `path`, as its config.json would state it.

    Carries model_type, the sizes, tie_word_embeddings, and bos_token_id and eos_token_id (an int, a list of ints, or None).
    Raises ModelError, naming the file, where the file is damaged or the model cannot be run exactly.
    """
    with GgufFile(path) as file:
        return config_of(file)


def config_of(file: GgufFile) -> dict[str, Any]:
    """gguf_config for a file that is open already. Raises ModelError as it does."""
    kind = architecture(file)
    keys = Keys(file, kind)
    reader, known = _READERS[kind]
    unknown = keys.unknown(known)
    if unknown:
        raise ModelError(f"{file.path}: the option {unknown[0]} is not supported for {kind}")
    if file.metadata.get(keys.name("attention.causal"), True) is not True:
        raise keys.refused("attention.causal")
    _check_layers(file, keys)
    rows, width = _embedding(file).shape
    if width != keys.size("embedding_length"):
        raise ModelError(f"{file.path}: {_EMBEDDING} is {width} wide, {keys.name('embedding_length')} says {keys.size('embedding_length')}")
    return {**reader(file, keys), "vocab_size": rows, "tie_word_embeddings": _tied(file), **_token_ids(file, rows)}


def architecture(file: GgufFile) -> str:
    """The architecture of the model in `file`. Raises ModelError unless it is one that this product runs."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"{file.path}: holds a GGUF {shown(kind)}, not a model")
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise ModelError(f"{file.path}: one part of a split GGUF file; join the parts first (llama-gguf-split --merge)")
    name = file.metadata.get("general.architecture")
    if name not in _READERS:
        raise ModelError(f"{file.path}: the GGUF architecture {shown(name)} is not supported, only {', '.join(_READERS)}")
    return str(name)


def _llama(file: GgufFile, keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    head_size = keys.optional_size("attention.key_length") or _head_size(file, keys)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (keys.optional_size(key) or head_size) != head_size:
            raise ModelError(f"{file.path}: {keys.name(key)} = {keys.size(key)} beside a head size of {head_size} is not supported")
    if file.metadata.get(keys.name("expert_count"), 0) != 0:
        raise ModelError(f"{file.path}: {keys.name('expert_count')}: a mixture of experts is not supported")
    theta = keys.number("rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.optional_size("attention.head_count_kv") or heads,
        "head_dim": head_size,
        "hidden_act": "silu",
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(file, keys, theta, head_size),
        "mlp_bias": _biases(file, ("ffn_gate", "ffn_up", "ffn_down")) == {"ffn_gate", "ffn_up", "ffn_down"},
        "attention_bias": False,
    }
    return config | _attention_variant(file, keys)


def _attention_variant(file: GgufFile, keys: Keys) -> dict[str, Any]:
    """What tells llama, mistral and qwen2 apart: the three are one architecture to GGUF."""
    biases = _biases(file, ("attn_q", "attn_k", "attn_v", "attn_output"))
    window = keys.optional_size("attention.sliding_window") if file.metadata.get(keys.name("attention.sliding_window")) else None
    if window is not None and window < keys.size("context_length"):
        if biases:
            raise ModelError(f"{file.path}: {keys.name('attention.sliding_window')} together with attention biases is not supported")
        return {"model_type": "mistral", "sliding_window": window}
    if biases == {"attn_q", "attn_k", "attn_v", "attn_output"}:
        return {"attention_bias": True}
    if biases == {"attn_q", "attn_k", "attn_v"}:
        return {"model_type": "qwen2", "attention_bias": True}
    if biases:
        raise ModelError(f"{file.path}: attention biases on {', '.join(sorted(biases))} alone are not supported")
    return {}


def _gpt2(file: GgufFile, keys: Keys) -> dict[str, Any]:
    _all_heads(file, keys)
    return {
        "model_type": "gpt2",
        "n_embd": keys.size("embedding_length"),
        "n_layer": keys.size("block_count"),
        "n_head": keys.size("attention.head_count"),
        "n_inner": keys.size("feed_forward_length"),
        "n_positions": keys.size("context_length"),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
    }


def _bloom(file: GgufFile, keys: Keys) -> dict[str, Any]:
    _all_heads(file, keys)
    hidden = keys.size("embedding_length")
    if keys.size("feed_forward_length") != 4 * hidden:
        raise keys.refused("feed_forward_length")
    return {
        "model_type": "bloom",
        "hidden_size": hidden,
        "n_layer": keys.size("block_count"),
        "n_head": keys.size("attention.head_count"),
        "seq_length": keys.size("context_length"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
        "apply_residual_connection_post_layernorm": False,
    }


def _all_heads(file: GgufFile, keys: Keys) -> None:
    """Checks that every head has its own keys and values, and that the heads divide the hidden size."""
    _head_size(file, keys)
    if (keys.optional_size("attention.head_count_kv") or keys.size("attention.head_count")) != keys.size("attention.head_count"):
        raise keys.refused("attention.head_count_kv")


def _head_size(file: GgufFile, keys: Keys) -> int:
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    if hidden % heads:
        raise ModelError(f"{file.path}: {keys.name('attention.head_count')} = {heads} does not divide the hidden size {hidden}")
    return hidden // heads


def _check_layers(file: GgufFile, keys: Keys) -> None:
    """A damaged count must not become billions of layers: every layer it speaks of has tensors."""
    count = keys.size("block_count")
    found = {name.split(".", 2)[1] for name in file.tensors if name.startswith("blk.")}
    if len(found) != count or not all(str(i) in found for i in range(count)):
        raise ModelError(f"{file.path}: {keys.name('block_count')} says {count} layers, the file has tensors of {len(found)}")


def _biases(file: GgufFile, parts: tuple[str, ...]) -> set[str]:
    """Which of a layer's `parts` have a bias. A bias in some layers only shows as a missing tensor when it is loaded."""
    return {part for part in parts if any(name.startswith("blk.") and name.endswith(f".{part}.bias") for name in file.tensors)}


def _embedding(file: GgufFile) -> GgufTensor:
    tensor = file.tensors.get(_EMBEDDING)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError(f"{file.path}: the tensor {_EMBEDDING} is missing or is no matrix")
    return tensor


def _tied(file: GgufFile) -> bool:
    """Whether the head is the embedding: it is absent, or a copy, which converters of bloom and gpt2 write."""
    head, embedding = file.tensors.get(_HEAD), _embedding(file)
    if head is None:
        return True
    if head.block_type is None or (head.shape, head.type_code) != (embedding.shape, embedding.type_code):
        return False
    one, other = file.data(_HEAD), file.data(_EMBEDDING)
    return all(one[i : i + _COMPARED_AT_ONCE] == other[i : i + _COMPARED_AT_ONCE] for i in range(0, head.nbytes, _COMPARED_AT_ONCE))


def _token_ids(file: GgufFile, vocabulary: int) -> dict[str, Any]:
    ends = [_token_id(file, f"tokenizer.ggml.{kind}_token_id", vocabulary) for kind in ("eos", "eot", "eom")]
    distinct = list(dict.fromkeys(i for i in ends if i is not None))
    return {
        "bos_token_id": _token_id(file, "tokenizer.ggml.bos_token_id", vocabulary),
        "eos_token_id": distinct if len(distinct) > 1 else distinct[0] if distinct else None,
    }


def _token_id(file: GgufFile, key: str, vocabulary: int) -> int | None:
    value = file.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocabulary:
        raise ModelError(f"{file.path}: {key} = {shown(value)} is no token of the vocabulary of {vocabulary}")
    return value


_READERS: Final[Mapping[str, tuple[Callable[[GgufFile, Keys], dict[str, Any]], frozenset[str]]]] = {
    "llama": (_llama, _LLAMA_KEYS),
    "gpt2": (_gpt2, _LAYER_NORM_KEYS),
    "bloom": (_bloom, _LAYER_NORM_KEYS),
}
