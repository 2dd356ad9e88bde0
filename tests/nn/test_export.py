from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.families import family
from inferometer.model.spec import ModelSpec
from inferometer.nn.dummy import DummySource
from inferometer.nn.export import export, fill_hf, hf_state
from inferometer.nn.load import load, open_checkpoint
from inferometer.nn.transformer import Transformer

_OPT = {"hidden_size": 24, "word_embed_proj_dim": 24, "num_hidden_layers": 2, "ffn_dim": 40, "num_attention_heads": 4}
_GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16}
_LLAMA = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_BERT = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {"hidden_size": 24, "n_layer": 2, "n_head": 4}),
    "opt": ("opt", _OPT),
    "opt-projected": ("opt", _OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    "opt-bare": ("opt", _OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    "gpt2": ("gpt2", _GPT2 | {"n_inner": 52}),
    "gpt2-untied": ("gpt2", _GPT2 | {"tie_word_embeddings": False}),
    "gpt_bigcode": ("gpt_bigcode", _GPT2),
    "gpt_bigcode-mha": ("gpt_bigcode", _GPT2 | {"multi_query": False}),
    "llama": ("llama", _LLAMA),
    "llama-biased-tied": ("llama", _LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10}),
    "mistral": ("mistral", _LLAMA),
    "qwen2": ("qwen2", _LLAMA),
    "bert": ("bert", _BERT),
}
configs = pytest.mark.parametrize(("kind", "options"), CONFIGS.values(), ids=CONFIGS)


def build(kind: str, options: dict[str, Any]) -> tuple[PreTrainedModel, ModelSpec]:
    """transformers' model with random weights everywhere, and the spec that its configuration gives."""
    config = AutoConfig.for_model(kind, vocab_size=31, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options)
    torch.manual_seed(0)
    model = (AutoModel if kind == "bert" else AutoModelForCausalLM).from_config(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_()
    return model, read_spec(config.to_dict(), kind)


@configs
def test_what_transformers_saves_is_loaded_and_exported_again(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    model, spec = build(kind, options)
    model.save_pretrained(tmp_path)
    native = Transformer(spec, torch.device("cpu"), torch.float32)
    load(native, open_checkpoint(tmp_path), family(spec.family))
    exported = dict(export(dict(native.named_parameters()), spec, family(spec.family)))
    expected = dict(model.named_parameters())
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)


@configs
def test_transformers_gets_the_same_dummy_weights(kind: str, options: dict[str, Any]) -> None:
    model, spec = build(kind, options)
    kin = family(spec.family)
    source = DummySource(spec, kin, seed=7)
    fill_hf(model, source, spec, kin)
    state = dict(hf_state(source, spec, kin))
    expected = dict(model.named_parameters())
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_tied_heads_stay_tied() -> None:
    model, spec = build("gpt2", _GPT2)
    fill_hf(model, DummySource(spec, family("gpt2"), seed=0), spec, family("gpt2"))
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()


def test_a_base_model_lacks_the_prefix() -> None:
    model, spec = build("gpt2", _GPT2)
    source = DummySource(spec, family("gpt2"), seed=0)
    fill_hf(model.transformer, source, spec, family("gpt2"))
    assert torch.equal(model.transformer.ln_f.bias, source.read("transformer.ln_f.bias", "cpu", torch.float32))


def test_filling_follows_the_model_s_dtype() -> None:
    model, spec = build("llama", _LLAMA)
    source = DummySource(spec, family("llama"), seed=0)
    fill_hf(model.bfloat16(), source, spec, family("llama"))
    assert torch.equal(model.model.norm.weight, source.read("model.norm.weight", "cpu", torch.bfloat16))


def test_models_of_another_shape_are_refused() -> None:
    model, _ = build("llama", _LLAMA)
    spec = build("llama", _LLAMA | {"intermediate_size": 48})[1]
    with pytest.raises(ModelError, match=r"LlamaForCausalLM has no parameter .*mlp.*48"):
        fill_hf(model, DummySource(spec, family("llama"), seed=0), spec, family("llama"))


def test_parameters_that_nothing_fills_are_refused() -> None:
    model, _ = build("llama", _LLAMA | {"attention_bias": True})
    spec = build("llama", _LLAMA)[1]
    with pytest.raises(ModelError, match=r"dummy weights of llama: has nothing for 8 parameters .*bias"):
        fill_hf(model, DummySource(spec, family("llama"), seed=0), spec, family("llama"))
