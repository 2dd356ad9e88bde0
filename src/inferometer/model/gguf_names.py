"""The tensors of a GGUF file under their Hugging Face names, each with what llama.cpp's converter did to its layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from inferometer.errors import ModelError
from inferometer.model.gguf import architecture
from inferometer.model.gguf_file import GgufFile, GgufTensor
from inferometer.model.gguf_keys import Keys
from inferometer.model.gguf_rope import FACTORS

Undo = Literal["nothing", "transpose", "pairs", "thirds"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the file and how to bring it back to its Hugging Face layout; `shape` is the one it then has.

    undo: "transpose", stored (outputs, inputs), was (inputs, outputs): GPT-2's Conv1D;
    "pairs", rows of each of `heads` heads stored (head_size / 2, 2), were (2, head_size / 2): llama's rotation of neighbours;
    "thirds", rows stored (3, heads, head_size), were (heads, 3, head_size): bloom's fused queries, keys and values.
    """

    tensor: GgufTensor
    undo: Undo = "nothing"
    heads: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape[::-1] if self.undo == "transpose" else self.tensor.shape


@dataclass(frozen=True, slots=True)
class _Names:
    """Hugging Face names by ggml name, without ".weight" or ".bias": outside the layers, and within layer {i}."""

    layer_prefix: str
    outside: Mapping[str, str]
    inside: Mapping[str, str]


_NAMES: Final[Mapping[str, _Names]] = {
    "llama": _Names(
        "model.layers.",
        {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
        {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "attn_rot_embd": "self_attn.rotary_emb.inv_freq",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "gpt2": _Names(
        "transformer.h.",
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
    ),
    "bloom": _Names(
        "transformer.h.",
        {
            "token_embd": "transformer.word_embeddings",
            "token_embd_norm": "transformer.word_embeddings_layernorm",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
    ),
}


def hugging_face_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """Every tensor of `file` by its Hugging Face name; one that has none keeps its ggml name.

    Left out: the rotary factors, which the configuration carries. Raises ModelError where a layout cannot be undone.
    """
    kind = architecture(file)
    keys = Keys(file, kind)
    heads = keys.size("attention.head_count")
    kv_heads = keys.optional_size("attention.head_count_kv") or heads
    found: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        if name == FACTORS:
            continue
        part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        matrix = len(tensor.shape) == 2
        stored = StoredTensor(tensor)
        if kind == "llama" and part in ("attn_q", "attn_k"):
            stored = StoredTensor(tensor, "pairs", heads if part == "attn_q" else kv_heads)
        elif kind == "bloom" and part == "attn_qkv":
            stored = StoredTensor(tensor, "thirds", heads)
        elif kind == "gpt2" and matrix and part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
            stored = StoredTensor(tensor, "transpose")
        group = {"pairs": 2, "thirds": 3}.get(stored.undo, 1) * stored.heads
        if tensor.shape[0] % group:
            raise ModelError(f"{file.path}: the tensor {name} has {tensor.shape[0]} rows, no multiple of {group}")
        found[_hugging_face_name(name, _NAMES[kind])] = stored
    return found


def _hugging_face_name(name: str, names: _Names) -> str:
    stem, dot, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        return name
    if stem in names.outside:
        return names.outside[stem] + dot + suffix
    blk, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if blk != "blk" or part not in names.inside:
        return name
    whole = names.inside[part]
    return f"{names.layer_prefix}{layer}.{whole}" + ("" if whole.endswith("inv_freq") else dot + suffix)
