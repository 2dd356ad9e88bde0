"""Configurations that are refused: each by one line that names the option and its value, none by a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stated_sizes import STATED

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.families import FAMILIES, family, family_for
from inferometer.model.parameters import parameters
from inferometer.model.spec import ModelSpec

_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 61}
_LLAMA = {**_SIZES, "num_key_value_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 61},
    "opt": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 40,
        "vocab_size": 61,
        "word_embed_proj_dim": 24,
    },
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_inner": None},
    "gpt_bigcode": {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 61, "multi_query": True},
    "llama": {**_LLAMA, "head_dim": 6},
    "mistral": {**_LLAMA, "sliding_window": 8},
    "qwen2": {**_LLAMA, "use_sliding_window": True},
    "bert": {**_SIZES, "type_vocab_size": 2},
}


def refusal(config: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read_spec(config, "tiny")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("tiny: ")
    return message


@pytest.mark.parametrize("config", [None, [], "llama", 7])
def test_a_configuration_is_an_object(config: Any) -> None:
    assert "object" in refusal(config)


@pytest.mark.parametrize("kind", ["mixtral", "t5", "", 7, [], {"a": 1}, True])
def test_an_unknown_type_is_refused_by_name(kind: Any) -> None:
    message = refusal({"model_type": kind})
    assert repr(kind) in message
    assert "llama" in message


def test_a_missing_type_is_said() -> None:
    assert "model_type" in refusal({"hidden_size": 8})
    with pytest.raises(ModelError, match="no family 'mixtral'"):
        family("mixtral")
    with pytest.raises(ModelError, match="'mixtral'"):
        family_for("mixtral")


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auto_map": {"AutoModel": "custom.Model"}}, "auto_map"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'gptq'"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "'bitsandbytes'"),
        ({"compression_config": {"quant_method": "sparseml"}}, "'sparseml'"),
        ({"quantization_config": "awq"}, "'awq'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification'"),
        ({"architectures": ["BertForSequenceClassification"]}, "'BertForSequenceClassification'"),
        ({"architectures": ["GPT2LMHeadCustomModel"]}, "'GPT2LMHeadCustomModel'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [3]}, "architectures"),
    ],
)
def test_what_changes_the_result_in_any_family_is_refused(kind: str, options: dict[str, Any], said: str) -> None:
    assert said in refusal({"model_type": kind, **TINY[kind], **options})


@pytest.mark.parametrize(("kind", "assumed"), [("qwen2", 32), ("mistral", 8)])
def test_a_default_that_does_not_go_with_the_file_is_told_as_what_the_file_lacks(kind: str, assumed: int) -> None:
    config = {"model_type": kind, **TINY[kind], "hidden_size": 56, "num_attention_heads": 14}
    del config["num_key_value_heads"]
    told = f"tiny: the configuration lacks num_key_value_heads, and {assumed}, which is meant without it, does not go with 14 heads; take "
    assert refusal(config).startswith(told)
    assert refusal({**config, "num_key_value_heads": 4}) == "tiny: heads (14) must be a multiple of kv_heads (4)"
    assert read_spec({**config, "num_key_value_heads": 2}, "x").kv_heads == 2


@pytest.mark.parametrize("kind", TINY)
def test_empty_values_of_those_options_are_fine(kind: str) -> None:
    empty = {"auto_map": None, "is_encoder_decoder": False, "pruned_heads": {}, "quantization_config": None, "architectures": None}
    assert read_spec({"model_type": kind, **TINY[kind], **empty}, "x") == read_spec({"model_type": kind, **TINY[kind]}, "x")


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("bloom", "BloomForCausalLM"), ("opt", "OPTModel"), ("opt", "OPTForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("gpt2", "GPT2Model"),
        ("gpt_bigcode", "GPTBigCodeForCausalLM"), ("llama", "LlamaForCausalLM"), ("llama", "LlamaModel"), ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"), ("bert", "BertModel"), ("bert", "BertForMaskedLM"), ("bert", "BertForPreTraining"),
    ],
)  # fmt: skip
def test_language_models_and_their_bases_are_run(kind: str, architecture: str) -> None:
    plain = {"model_type": kind, **TINY[kind]}
    assert read_spec({**plain, "architectures": [architecture]}, "x") == read_spec(plain, "x")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert", "is_decoder": True}, "is_decoder = True"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"model_type": "bert", "type_vocab_size": 0}, "type_vocab_size"),
        ({"model_type": "gpt2", "n_embd": 25, "n_head": 4}, "25"),
        ({"model_type": "gpt2", "hidden_size": "24"}, "hidden_size must be"),
        ({"model_type": "gpt2", "activation_function": "xielu"}, "activation_function = 'xielu'"),
        ({"model_type": "gpt2", "n_head": True}, "n_head"),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer"),
        ({"model_type": "gpt2", "n_layer": 10**9}, "n_layer"),
        ({"model_type": "gpt2", "n_embd": None}, "n_embd"),
        ({"model_type": "gpt2", "n_inner": -4}, "n_inner"),
        ({"model_type": "gpt2", "scale_attn_weights": "yes"}, "scale_attn_weights"),
        ({"model_type": "gpt2", "layer_norm_epsilon": -1e-5}, "layer_norm_epsilon"),
        ({"model_type": "gpt2", "layer_norm_epsilon": float("inf")}, "layer_norm_epsilon"),
        ({"model_type": "gpt2", "vocab_size": 10**5000}, "vocab_size"),
        ({"model_type": "opt", "hidden_size": 768.0}, "hidden_size"),
        ({"model_type": "opt", "enable_bias": None}, "enable_bias"),
        ({"model_type": "opt", "word_embed_proj_dim": 0}, "word_embed_proj_dim"),
        ({"model_type": "llama", "num_attention_heads": 6, "hidden_size": 12, "num_key_value_heads": 4}, "kv_heads"),
        ({"model_type": "llama", "hidden_act": ["silu"]}, "hidden_act"),
        ({"model_type": "llama", "sliding_window": -1}, "sliding_window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
        ({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen2", "num_hidden_layers": 1, "layer_types": ["linear_attention"]}, "'linear_attention'"),
        (
            {"model_type": "qwen2", "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "use_sliding_window": False},
            "sliding_window",
        ),
    ],
)
def test_malformed_options_are_named(config: dict[str, Any], said: str) -> None:
    assert said in refusal({**TINY[config["model_type"]], **config})


@pytest.mark.parametrize("kind", STATED)
def test_a_size_that_is_left_out_is_not_guessed(kind: str) -> None:
    stated = {"model_type": kind, **TINY[kind]}
    remedy = "describes no model; take the whole file that was published with the weights, or add what it lacks"
    said = refusal({"model_type": kind})
    assert said == f"tiny: the configuration lacks {', '.join(STATED[kind])}: without those it {remedy}"
    for size in STATED[kind]:
        said = refusal({option: value for option, value in stated.items() if option != size})
        assert said == f"tiny: the configuration lacks {size}: without that it {remedy}"


OPTIONS = sorted(
    {
        "vocab_size", "hidden_size", "n_embd", "n_embed", "n_layer", "n_head", "n_inner", "n_positions", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "ffn_dim", "max_position_embeddings", "rms_norm_eps",
        "layer_norm_eps", "layer_norm_epsilon", "hidden_act", "activation_function", "tie_word_embeddings", "attention_bias", "mlp_bias",
        "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings", "sliding_window",
        "use_sliding_window", "max_window_layers", "layer_types", "multi_query", "scale_attn_weights", "enable_bias", "word_embed_proj_dim",
        "do_layer_norm_before", "_remove_final_layer_norm", "layer_norm_elementwise_affine", "type_vocab_size", "is_decoder",
        "position_embedding_type", "apply_residual_connection_post_layernorm", "architectures", "auto_map", "quantization_config",
        "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "add_cross_attention", "per_layer_config",
    }
)  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 64), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([2**31 - 1, 2**31, 2**64, 10**400, -(10**400), "gelu", "silu", "a\nb"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
rope = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "longrope"])},
    optional={
        key: st.one_of(scalars, st.floats(0.5, 8.0))
        for key in (
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor", "mscale",
            "mscale_all_dim", "beta_fast", "beta_slow", "truncate", "rope_theta", "type",
        )
    },
)  # fmt: skip
changes = st.dictionaries(st.sampled_from(OPTIONS), values, max_size=4)


def outcome(config: dict[str, Any]) -> ModelSpec | str:
    try:
        return read_spec(config, "fuzz")
    except ModelError as error:
        return str(error)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(sorted(TINY)), change=changes, scaling=st.one_of(st.none(), rope))
def test_any_configuration_is_read_or_refused_in_one_line(kind: str, change: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    spec = outcome({"model_type": kind, **TINY[kind], **({"rope_scaling": scaling} if scaling else {}), **change})
    if isinstance(spec, str):
        assert "\n" not in spec
        assert len(spec) < 600
    else:
        assert spec.context_limit is None or spec.context_limit >= 1
        if spec.layers <= 64:
            assert set(family(spec.family).pieces(spec)) == {parameter.name for parameter in parameters(spec)}


@settings(max_examples=200, deadline=None)
@given(config=st.dictionaries(st.one_of(st.sampled_from(["model_type", *OPTIONS]), st.text(max_size=8)), values, max_size=6))
def test_any_object_is_read_or_refused_in_one_line(config: dict[str, Any]) -> None:
    spec = outcome(config)
    assert isinstance(spec, ModelSpec) or "\n" not in spec


def test_the_reader_leaves_the_configuration_alone() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    config = {**TINY["llama"], "model_type": "llama", "rope_scaling": scaling, "rope_theta": 5.0}
    before = {**config, "rope_scaling": dict(scaling)}
    read_spec(config, "x")
    assert config == before


def test_every_family_names_its_types_once() -> None:
    types = [kind for entry in FAMILIES for kind in entry.model_types]
    assert len(types) == len(set(types))
    assert set(types) == set(TINY) == set(STATED)
