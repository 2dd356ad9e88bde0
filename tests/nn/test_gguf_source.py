from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_models import from_hugging_face, tiny, write
from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.families import family_for
from inferometer.model.gguf import gguf_config
from inferometer.nn import gguf as ours
from inferometer.nn.export import fill_hf, hf_state
from inferometer.nn.gguf import GgufSource

ARCHITECTURES = ("llama", "gpt2", "bloom")
SIMPLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
K_TYPES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of the float16 scales within a block."""


def state_of(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Every tensor the model in `path` needs, by its Hugging Face name."""
    config = gguf_config(path)
    source = GgufSource(path)
    state = {name: t.clone() for name, t in hf_state(source, read_spec(config, "m"), family_for(config), dtype=dtype)}
    source.close()
    return state


def hugging_face_model(architecture: str) -> torch.nn.Module:
    config: dict[str, Any] = {
        "llama": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "rope_theta": 5000.0,
        },
        "gpt2": {"n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 4, "n_positions": 32},
        "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    }[architecture]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(architecture, vocab_size=40, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, **config)
    )
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gives_back_the_checkpoint_that_was_converted(tmp_path: Path, architecture: str) -> None:
    model = hugging_face_model(architecture)
    expected = {name: p.detach() for name, p in model.named_parameters()}
    arrays = from_hugging_face(architecture, {k: v.numpy() for k, v in expected.items()}, layers=2, heads=4, kv_heads=2)
    found = state_of(write(tmp_path / "m.gguf", architecture, arrays))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_converted_model_computes_the_same_in_transformers(tmp_path: Path, architecture: str) -> None:
    model = hugging_face_model(architecture)
    arrays = from_hugging_face(architecture, {k: p.detach().numpy() for k, p in model.named_parameters()}, layers=2, heads=4, kv_heads=2)
    path = write(tmp_path / "m.gguf", architecture, arrays, {"attention.layer_norm_rms_epsilon": 1e-6} if architecture == "llama" else None)
    config = gguf_config(path)
    other = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    fill_hf(other, GgufSource(path), read_spec(config, "m"), family_for(config))
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        torch.testing.assert_close(other(ids).logits, model(ids).logits, rtol=0, atol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block_type", ["F32", "F16", "Q8_0", "Q4_1"])
def test_reads_what_transformers_reads(tmp_path: Path, architecture: str, block_type: str) -> None:
    # transformers drops GPT-2's inner width and number of positions, so they are the defaults here; it counts the tokens.
    keys = {"context_length": 1024, "feed_forward_length": 256} if architecture == "gpt2" else {"vocab_size": 40}
    tokens = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(40)]}
    path = write(tmp_path / "m.gguf", architecture, tiny(architecture, keys), keys, block_type=block_type, general=tokens)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    found, expected = state_of(path), dict(theirs.named_parameters())
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("block_type", SIMPLE)
def test_each_block_type_is_decoded(tmp_path: Path, block_type: str) -> None:
    array = np.random.default_rng(3).normal(0, 1, (96, 64)).astype(np.float32)
    tensors = tiny("llama") | {"blk.0.ffn_up.weight": array}
    source = GgufSource(write(tmp_path / "m.gguf", "llama", tensors, block_type=block_type))
    kind = gguf.GGMLQuantizationType[block_type]
    expected = torch.from_numpy(dequantize(gguf.quants.quantize(array, kind), kind))
    found = source.read("model.layers.0.mlp.up_proj.weight", "cpu", torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (found - torch.from_numpy(array)).abs().max() < 0.5  # coarse, yet no permutation would pass it
    half = source.read("model.layers.0.mlp.up_proj.weight", "cpu", torch.bfloat16)
    torch.testing.assert_close(half, expected.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("block_type", K_TYPES)
def test_k_types_are_decoded_in_bounded_parts(tmp_path: Path, block_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = gguf.GGMLQuantizationType[block_type]
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (37, 2, nbytes), dtype=np.uint8)
    for at in K_TYPES[block_type]:
        blocks[:, :, at : at + 2] = rng.uniform(0.01, 0.1, (37, 2, 1)).astype(np.float16).view(np.uint8)
    data = blocks.reshape(37, -1)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_tensor("token_embd.weight", data, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    monkeypatch.setattr(ours, "_AT_ONCE", 5 * 2 * block)
    source = GgufSource(tmp_path / "m.gguf")
    assert source.tensors() == {"model.embed_tokens.weight": (37, 2 * block)}
    expected = torch.from_numpy(dequantize(data, kind))
    torch.testing.assert_close(source.read("model.embed_tokens.weight", "cpu", torch.float32), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("block_type", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32), ("Q8_0", None)]
)
def test_the_stored_dtype_is_that_of_the_matrices(tmp_path: Path, block_type: str, dtype: torch.dtype | None) -> None:
    assert GgufSource(write(tmp_path / "m.gguf", "llama", tiny("llama"), block_type=block_type)).dtype is dtype


def test_other_block_types_are_refused_by_name_and_tensor(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.IQ4_NL
    data = np.zeros((96, gguf.quants.quant_shape_to_byte_shape((64,), kind)[0]), np.uint8)
    path = write(tmp_path / "m.gguf", "llama", {"token_embd.weight": data}, block_type="IQ4_NL")
    with pytest.raises(ModelError, match=r"m\.gguf: the tensor token_embd\.weight .*IQ4_NL"):
        GgufSource(path)


def test_rows_that_do_not_fit_the_heads_are_refused(tmp_path: Path) -> None:
    tensors = tiny("llama") | {"blk.1.attn_k.weight": np.zeros((33, 64), np.float32)}
    with pytest.raises(ModelError, match=r"blk\.1\.attn_k\.weight has 33 rows"):
        GgufSource(write(tmp_path / "m.gguf", "llama", tensors))


def test_llama_query_biases_are_put_in_order_too(tmp_path: Path) -> None:
    bias = np.arange(64, dtype=np.float32)
    tensors = tiny("llama", biases=("attn_q", "attn_k", "attn_v"))
    tensors["blk.0.attn_q.bias"] = bias.reshape(4, 2, 8).swapaxes(1, 2).reshape(64)
    found = state_of(write(tmp_path / "m.gguf", "llama", tensors))["model.layers.0.self_attn.q_proj.bias"]
    assert found.tolist() == bias.tolist()


def test_a_tensor_unknown_to_the_architecture_keeps_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", tiny("llama") | {"blk.0.surprise.weight": np.zeros((2, 2), np.float32)})
    assert "blk.0.surprise.weight" in GgufSource(path).tensors()
    with pytest.raises(ModelError, match=r"unexpected: blk\.0\.surprise\.weight"):
        state_of(path)
