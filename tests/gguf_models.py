"""Small GGUF files, written as llama.cpp's converter writes them: names from the gguf package, layouts changed as it changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

Arrays = Mapping[str, np.ndarray]

LLAMA: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 16,
    "rope.freq_base": 5000.0,
    "vocab_size": 40,
}
GPT2: dict[str, Any] = {
    "context_length": 32,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.layer_norm_epsilon": 1e-5,
}
BLOOM: dict[str, Any] = {
    "context_length": 32,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 4,
    "attention.layer_norm_epsilon": 1e-5,
}
METADATA = {"llama": LLAMA, "gpt2": GPT2, "bloom": BLOOM}


def write(
    path: Path,
    architecture: str,
    tensors: Arrays,
    keys: Mapping[str, Any] | None = None,
    *,
    block_type: str = "F32",
    general: Mapping[str, Any] | None = None,
) -> Path:
    """A GGUF file of `tensors` (ggml names), matrices stored as `block_type`; `keys` lack the architecture's prefix."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {f"{architecture}.{k}": v for k, v in (METADATA[architecture] | dict(keys or {})).items()}.items():
        _add(writer, key, value)
    for key, value in ({"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2} | dict(general or {})).items():
        _add(writer, key, value)
    for name, array in tensors.items():
        kind = gguf.GGMLQuantizationType[block_type if array.ndim > 1 else "F32"]
        if array.dtype == np.uint8:  # blocks already
            writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[block_type])
        else:
            data = np.ascontiguousarray(quantize(array.astype(np.float32), kind))
            writer.add_tensor(name, data, raw_dtype=kind if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    if value is not None:
        adders[type(value)](key, value)


def from_hugging_face(architecture: str, state: Arrays, *, layers: int, heads: int, kv_heads: int | None = None) -> dict[str, np.ndarray]:
    """A Hugging Face state dict under ggml names with the converter's changes of layout."""
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, layers)
    out = {}
    for name, array in state.items():
        stem, _, suffix = name.rpartition(".")
        # The converter strips the base model's prefix from bloom's names first.
        ggml = names.get_name(name.removeprefix("transformer.") if architecture == "bloom" else name, try_suffixes=(".weight", ".bias"))
        assert ggml is not None, name
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            array = _interleave(array, heads if stem.endswith("q_proj") else kv_heads or heads)
        if architecture == "gpt2" and suffix == "weight" and stem.endswith(("c_attn", "c_proj", "c_fc")):
            array = array.T
        if architecture == "bloom" and stem.endswith("query_key_value"):
            array = np.concatenate([p.reshape(-1, *array.shape[1:]) for p in np.moveaxis(_by_head(array, heads), 1, 0)])
        out[ggml] = array
    return out


def _interleave(array: np.ndarray, heads: int) -> np.ndarray:
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _by_head(array: np.ndarray, heads: int) -> np.ndarray:
    return array.reshape(heads, 3, -1, *array.shape[1:])


def tiny(
    architecture: str, keys: Mapping[str, Any] | None = None, *, seed: int = 0, vocabulary: int = 40, biases: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Random tensors under ggml names for METADATA[architecture], changed by `keys`."""
    sizes = METADATA[architecture] | dict(keys or {})
    hidden, inner = sizes["embedding_length"], sizes["feed_forward_length"]
    kv = hidden * sizes.get("attention.head_count_kv", sizes["attention.head_count"]) // sizes["attention.head_count"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    matrices: dict[str, tuple[int, ...]] = {"attn_output": (hidden, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    if architecture == "llama":
        matrices |= {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "ffn_gate": (inner, hidden)}
    else:
        matrices |= {"attn_qkv": (3 * hidden, hidden)}
        biases = ("attn_norm", "ffn_norm", *matrices)
        shapes["output_norm.bias"] = (hidden,)
    if architecture == "gpt2":
        shapes["position_embd.weight"] = (sizes["context_length"], hidden)
    if architecture == "bloom":
        shapes |= {"token_embd_norm.weight": (hidden,), "token_embd_norm.bias": (hidden,)}
    for i in range(sizes["block_count"]):
        for part, shape in (matrices | {"attn_norm": (hidden,), "ffn_norm": (hidden,)}).items():
            shapes[f"blk.{i}.{part}.weight"] = shape
            if part in biases:
                shapes[f"blk.{i}.{part}.bias"] = shape[:1]
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
