from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_configs import config, refusal

import gguf_models
from gguf_models import tiny
from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.gguf import gguf_config
from inferometer.model.gguf_keys import shortest_float
from inferometer.model.spec import Rotary

ARCHITECTURES = ("llama", "gpt2", "bloom")


def test_llama(tmp_path: Path) -> None:
    assert config(tmp_path) == {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_gpt2(tmp_path: Path) -> None:
    assert config(tmp_path, "gpt2", general={"tokenizer.ggml.eot_token_id": 5}) == {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_inner": 96,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2, 5],
    }


def test_bloom(tmp_path: Path) -> None:
    general = {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": None}
    assert config(tmp_path, "bloom", general=general) == {
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "seq_length": 32,
        "layer_norm_epsilon": 1e-5,
        "apply_residual_connection_post_layernorm": False,
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_configuration_is_one_that_the_family_reads(tmp_path: Path, architecture: str) -> None:
    spec = read_spec(config(tmp_path, architecture), "m")
    assert (spec.family, spec.layers, spec.hidden, spec.vocabulary) == (architecture, 2, 64, 40)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_is_tied_where_it_is_absent_or_a_copy(tmp_path: Path, architecture: str) -> None:
    tensors = tiny(architecture)
    copied = tensors | {"output.weight": tensors["token_embd.weight"]}
    other = tensors | {"output.weight": tensors["token_embd.weight"] + np.float32(1)}
    assert config(tmp_path, architecture, tensors=copied)["tie_word_embeddings"] is True
    assert config(tmp_path, architecture, tensors=other)["tie_word_embeddings"] is False


def test_the_embedding_counts_the_vocabulary(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": [str(i) for i in range(37)]}
    assert config(tmp_path, tensors=tiny("llama", vocabulary=48), general=tokens)["vocab_size"] == 48


def test_llama_head_size_may_be_explicit(tmp_path: Path) -> None:
    keys = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}
    assert config(tmp_path, keys=keys)["head_dim"] == 32


def test_llama_defaults(tmp_path: Path) -> None:
    keys = dict.fromkeys(("attention.head_count_kv", "rope.freq_base", "rope.dimension_count", "vocab_size"))
    found = config(tmp_path, keys=keys)
    assert (found["num_key_value_heads"], found["rope_theta"], found["head_dim"]) == (4, 10000.0, 16)


def test_sizes_may_be_given_for_each_layer_if_they_are_equal(tmp_path: Path) -> None:
    assert config(tmp_path, keys={"attention.head_count_kv": [2, 2]})["num_key_value_heads"] == 2
    assert "differs between layers" in refusal(tmp_path, keys={"attention.head_count_kv": [2, 4]})


def test_llama_biases_tell_the_variants_apart(tmp_path: Path) -> None:
    qkv = ("attn_q", "attn_k", "attn_v")
    kinds = {
        qkv: ("qwen2", True, False),
        (*qkv, "attn_output"): ("llama", True, False),
        ("ffn_gate", "ffn_up", "ffn_down"): ("llama", False, True),
    }
    for biases, expected in kinds.items():
        found = config(tmp_path, tensors=tiny("llama", biases=biases))
        assert (found["model_type"], found["attention_bias"], found["mlp_bias"]) == expected
    spec = read_spec(config(tmp_path, tensors=tiny("llama", biases=qkv)), "m")
    assert (spec.qkv_bias, spec.output_bias) == (True, False)
    assert "attn_k, attn_q" in refusal(tmp_path, tensors=tiny("llama", biases=("attn_q", "attn_k")))


def test_a_sliding_window_makes_it_mistral(tmp_path: Path) -> None:
    found = config(tmp_path, keys={"attention.sliding_window": 16})
    assert (found["model_type"], found["sliding_window"]) == ("mistral", 16)
    assert read_spec(found, "m").sliding_window == 16
    for harmless in (0, 64):
        assert config(tmp_path, keys={"attention.sliding_window": harmless})["model_type"] == "llama"


@pytest.mark.parametrize(
    ("architecture", "keys", "words"),
    [
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"rope.dimension_count": 8}, "llama.rope.dimension_count = 8"),
        ("llama", {"attention.value_length": 8}, "llama.attention.value_length = 8"),
        ("llama", {"attention.head_count": 5}, "llama.attention.head_count = 5"),
        ("llama", {"attention.head_count": 0}, "llama.attention.head_count"),
        ("llama", {"attention.layer_norm_rms_epsilon": None}, "lacks llama.attention.layer_norm_rms_epsilon"),
        ("llama", {"attention.layer_norm_rms_epsilon": math.nan}, "llama.attention.layer_norm_rms_epsilon"),
        ("llama", {"rope.freq_base": -1.0}, "llama.rope.freq_base"),
        ("llama", {"rope.freq_base": "big"}, "llama.rope.freq_base"),
        ("llama", {"context_length": None}, "lacks llama.context_length"),
        ("llama", {"context_length": True}, "llama.context_length"),
        ("llama", {"block_count": 3}, "llama.block_count says 3"),
        ("llama", {"block_count": 4_000_000_000}, "llama.block_count"),
        ("llama", {"embedding_length": 32}, "token_embd.weight is 64 wide"),
        ("llama", {"rope.scaling.type": "longrope"}, "llama.rope.scaling.type = 'longrope'"),
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 2.0}, "llama.rope.scaling.attn_factor"),
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("llama", {"attention.scale": 0.5}, "llama.attention.scale"),
        ("llama", {"attention.causal": False}, "llama.attention.causal"),
        ("gpt2", {"attention.head_count_kv": 2}, "gpt2.attention.head_count_kv"),
        ("gpt2", {"attention.head_count": 5}, "gpt2.attention.head_count = 5"),
        ("bloom", {"feed_forward_length": 96}, "bloom.feed_forward_length = 96"),
        ("bloom", {"attention.max_alibi_bias": 4.0}, "bloom.attention.max_alibi_bias"),
    ],
)
def test_what_cannot_be_run_exactly_is_refused_by_name(tmp_path: Path, architecture: str, keys: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, architecture, keys)


@pytest.mark.parametrize(
    ("general", "words"),
    [
        ({"tokenizer.ggml.eos_token_id": 40}, "tokenizer.ggml.eos_token_id = 40"),
        ({"tokenizer.ggml.bos_token_id": "two"}, "tokenizer.ggml.bos_token_id"),
        ({"general.type": "adapter"}, "adapter"),
        ({"split.count": 3}, "split"),
    ],
)
def test_general_metadata_is_checked(tmp_path: Path, general: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, general=general)


def test_other_architectures_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gguf_models.METADATA, "qwen3moe", gguf_models.GPT2)
    assert "'qwen3moe' is not supported, only llama, gpt2, bloom" in refusal(tmp_path, "qwen3moe", tensors=tiny("gpt2"))


def test_a_file_without_architecture_or_embedding_is_refused(tmp_path: Path) -> None:
    tensors = tiny("llama")
    del tensors["token_embd.weight"]
    assert "token_embd.weight is missing" in refusal(tmp_path, tensors=tensors)
    path = tmp_path / "bare.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + bytes(16))
    with pytest.raises(ModelError, match="architecture None"):
        gguf_config(path)


@pytest.mark.parametrize("value", [1e-5, 1e-6, 500000.0, 1.0, 0.1, 1e30, 8.0, 3.0e-30])
def test_shortest_float_gives_back_the_decimal(value: float) -> None:
    assert shortest_float(float(np.float32(value))) == value


def test_shortest_float_leaves_doubles_alone() -> None:
    assert shortest_float(math.pi) == math.pi


@pytest.mark.real
def test_the_embedded_model_is_described_quickly() -> None:
    from inferometer.model.store import locate

    path = locate("smollm2-135m")
    assert path is not None
    started = time.perf_counter()
    found = gguf_config(path)
    assert time.perf_counter() - started < 0.5
    spec = read_spec(found, "smollm2-135m")
    assert (spec.layers, spec.hidden, spec.feed_forward, spec.heads, spec.kv_heads, spec.vocabulary) == (30, 576, 1536, 9, 3, 49152)
    assert spec.tied_head
    assert spec.positions == Rotary(100000.0)
    assert found["eos_token_id"] == 2
