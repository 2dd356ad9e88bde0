"""Architectures that are estimated and not run: their sizes, and that nothing runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stated_sizes import STATED_IN_OUTLINES

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.description import describe
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.ops import tensor_flops, weight_bytes
from inferometer.model.outline import read_outline
from inferometer.model.outlined_families import OUTLINED
from inferometer.model.parameters import parameter_count
from inferometer.model.presets import PRESETS, preset
from inferometer.model.published import read_published
from inferometer.model.spec import Experts, ModelSpec
from inferometer.model.step import decode_equal, prefill
from inferometer.model.work import work

TINY: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": 128,
    "head_dim": 16, "n_embd": 64, "n_layer": 4, "n_head": 4, "num_heads": 4, "num_layers": 4, "d_model": 64, "n_heads": 4, "n_layers": 4,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "sliding_window": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
}  # fmt: skip


def _spec(name: str) -> ModelSpec:
    found = preset(name)
    assert found is not None
    return found.spec()


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 46.7),
        ("qwen3-8b", 8.19),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235.1),
        ("gemma-2-9b", 9.24),
        ("gemma-3-27b", 27.0),
        ("gpt-j-6b", 6.05),
        ("gpt-neox-20b", 20.6),
        ("falcon-7b", 6.92),
        ("falcon-40b", 41.3),
        ("phi-2", 2.78),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
        ("deepseek-v3", 671.0),
    ],
)
def test_parameters_are_as_many_as_published(name: str, billions: float) -> None:
    assert parameter_count(_spec(name)) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("name", [name for name, each in PRESETS.items() if each.spec().unrun is not None])
def test_what_is_only_estimated_is_refused_by_what_runs_models(name: str) -> None:
    with pytest.raises(ModelError, match=r"is estimated \(`inferometer estimate`\) and not run; the types that run are bloom, .*, llama"):
        describe(name, config_only=True)
    assert describe(name, config_only=True, read=read_outline).spec == _spec(name)


def test_the_module_refuses_an_outline() -> None:
    torch = pytest.importorskip("torch")
    from inferometer.nn.transformer import Transformer

    with pytest.raises(ModelError, match="mixtures of experts cannot be run"):
        Transformer(_spec("mixtral-8x7b"), torch.device("meta"), torch.float32)


@pytest.mark.parametrize("kind", sorted(OUTLINED))
@pytest.mark.parametrize(
    ("stored", "method"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"quant_method": "foo"}, "'foo'"),
        ({"bits": 4}, "None"),
    ],
)
def test_weights_in_few_bits_of_a_method_that_is_not_known_are_refused(kind: str, stored: dict[str, Any], method: str) -> None:
    config = {**TINY, "model_type": kind, "quantization_config": stored}
    with pytest.raises(ModelError, match=f"^m: quantization_config of quant_method {method}: .*the checkpoint before quantisation"):
        read_outline(config, "m")
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert read_outline(config, "m").name == "m"


@pytest.mark.parametrize(
    ("config", "lacks"),
    [
        ({"model_type": "qwen3_moe", **TINY, "num_experts_per_tok": ...}, "num_experts_per_tok, and 8, .* with 4 experts"),
        (
            {
                "model_type": "gemma3",
                "text_config": {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 6},
            },
            "num_key_value_heads, and 4, .* with 6 heads",
        ),
    ],
)
def test_a_default_that_does_not_go_with_the_file_is_told_as_what_the_file_lacks(config: dict[str, Any], lacks: str) -> None:
    with pytest.raises(ModelError, match=f"^m: the configuration lacks {lacks}"):
        read_outline({key: value for key, value in config.items() if value is not ...}, "m")


def test_so_they_are_where_the_text_models_part_says_so() -> None:
    config = {"model_type": "gemma3", "text_config": {**TINY, "quantization_config": {"quant_method": "foo"}}}
    with pytest.raises(ModelError, match="'foo'"):
        read_outline(config, "m")


def test_what_is_run_is_read_alike() -> None:
    for each in PRESETS.values():
        if each.config["model_type"] not in OUTLINED and read_published(each.config, "x") is None:
            assert read_outline(each.config, "x") == read_spec(each.config, "x")


@pytest.mark.parametrize(
    ("config", "told"), [({"model_type": "mamba"}, "mamba"), ({"model_type": 3}, "3"), ({}, "has no"), ({"model_type": None}, "has no")]
)
def test_an_unknown_type_is_named_with_those_that_are_known(config: dict[str, object], told: str) -> None:
    with pytest.raises(ModelError, match=rf"{told}.*; the types are .*\bllama\b.*\bmixtral\b"):
        read_outline(config, "mine")


def test_a_folders_config_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(PRESETS["mixtral-8x7b"].config)))
    found = describe(str(tmp_path), config_only=True, read=read_outline).spec
    assert found.experts == Experts(count=8, per_token=2, feed_forward=14336)
    with pytest.raises(ModelError, match="mixtral"):
        describe(str(tmp_path), config_only=True)


def test_gemma_3_of_the_hub_has_its_text_model_inside() -> None:
    text = {**PRESETS["gemma-3-12b"].config}
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    assert read_outline(outer, "x") == read_outline(text, "x")


def test_gemma_3_of_4_billions_leaves_its_heads_out() -> None:
    """As its published file does; the text model has 3.88 billion parameters, of which its embeddings are 0.67."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = read_outline({"model_type": "gemma3", "text_config": text}, "x")
    assert (spec.heads, spec.kv_heads, spec.head_size, spec.vocabulary) == (8, 4, 256, 262_208)
    assert parameter_count(spec) / 1e9 == pytest.approx(3.88, abs=0.005)


@pytest.mark.parametrize("kind", OUTLINED)
def test_a_size_that_is_left_out_is_not_guessed(kind: str) -> None:
    stated = {"model_type": kind, **TINY}
    for lacking in (STATED_IN_OUTLINES[kind], *((size,) for size in STATED_IN_OUTLINES[kind])):
        with pytest.raises(ModelError) as caught:
            read_outline({option: value for option, value in stated.items() if option not in lacking}, "tiny")
        assert str(caught.value).startswith(f"tiny: the configuration lacks {', '.join(lacking)}: without th")


def test_few_tokens_read_few_experts_and_many_read_all() -> None:
    spec, formats = _spec("mixtral-8x7b"), Formats()
    whole = resident_weight_bytes(spec, formats)
    one, many = weight_bytes(work(spec, decode_equal(1, 100), formats)), weight_bytes(work(spec, decode_equal(256, 100), formats))
    assert one / whole == pytest.approx(12.9 / 46.7, rel=0.03)
    assert many / whole == pytest.approx(1, rel=0.02)
    # A token's arithmetic is that of its two experts, however many tokens there are.
    flops = tensor_flops(work(spec, decode_equal(256, 1), formats))
    assert flops / 256 == pytest.approx(2 * 12.9e9, rel=0.03)


def test_windows_bound_what_a_layer_looks_at() -> None:
    spec = _spec("gemma-3-27b")
    near, far = (work(spec, decode_equal(1, context), Formats()) for context in (1024, 32_768))
    grown = sum(op.count * op.kv_bytes for op in far if op.kind == "attention") / sum(
        op.count * op.kv_bytes for op in near if op.kind == "attention"
    )
    full, windowed = spec.layers - spec.windowed_layers, spec.windowed_layers
    assert grown == pytest.approx((32 * full + windowed) / (full + windowed))
    pairs = {op.name: op.shape[1] for op in work(spec, prefill(1, 4096), Formats()) if op.kind == "attention"}
    assert pairs["attention_scores"] == 4096 * 4097 // 2
    assert pairs["windowed_attention_scores"] == 1024 * 1025 // 2 + 3072 * 1024


@pytest.mark.parametrize("kind", sorted(OUTLINED))
def test_every_type_reads_a_small_configuration(kind: str) -> None:
    spec = read_outline({"model_type": kind, **TINY}, "tiny")
    assert spec.layers == 4
    assert spec.unrun is not None
    assert work(spec, prefill(2, 10), Formats())
    assert resident_weight_bytes(spec, Formats(dtype="float32")) == 4 * parameter_count(spec)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(OUTLINED)),
    st.sampled_from(sorted(TINY)),
    st.one_of(st.none(), st.booleans(), st.integers(-3, 10**12), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=2)),
)
def test_any_configuration_is_read_or_refused_in_one_line(kind: str, option: str, value: Any) -> None:
    said = None
    try:
        spec = read_outline({"model_type": kind, **TINY, option: value}, "fuzz")
    except ModelError as error:
        said = str(error)
    if said is None:
        assert parameter_count(spec) > 0
    else:
        assert "\n" not in said
        assert said.startswith("fuzz: ")
