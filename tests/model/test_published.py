"""Formats of weights that are published, estimated and not run: their bytes as published, and what of a file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.description import describe
from inferometer.model.footprint import layer_weight_bytes, resident_weight_bytes, weight_bytes_by_layer, weight_bytes_by_part
from inferometer.model.formats import Formats
from inferometer.model.ops import weight_bytes
from inferometer.model.outline import read_outline
from inferometer.model.parameters import parameter_count
from inferometer.model.presets import PRESETS
from inferometer.model.published import read_published
from inferometer.model.step import decode_equal
from inferometer.model.work import work

GIB = 2**30
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
BLOCKS: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def formats_of(config: Any, name: str = "m") -> tuple[Any, Formats]:
    spec, found = read_outline(config, name), read_published(config, name)
    assert found is not None
    return spec, Formats(dtype="bfloat16", weights=found.weights(spec, name))


def llama(stated: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": stated}


@pytest.mark.parametrize(("name", "published_gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_a_checkpoint_has_the_bytes_that_its_model_card_says(name: str, published_gib: float) -> None:
    spec, formats = formats_of(PRESETS[name].config, name)
    assert resident_weight_bytes(spec, formats) / GIB == pytest.approx(published_gib, abs=0.05)


def test_llama_405b_in_fp8_is_not_half_of_itself() -> None:
    """Its feed-forward blocks are in 8 bits, of 124 of 126 layers, and nothing else."""
    spec, formats = formats_of(PRESETS["llama-3.1-405b-fp8"].config)
    blocks = 3 * 16_384 * 53_248
    others = parameter_count(spec) - 124 * blocks
    scales = 124 * 4 * (2 * 53_248 + 16_384)
    assert resident_weight_bytes(spec, formats) == 124 * blocks + scales + 2 * others


def test_the_bytes_of_gpt_oss_by_part_follow_from_its_sizes() -> None:
    spec, formats = formats_of(PRESETS["gpt-oss-120b"].config)
    parts = weight_bytes_by_part(spec, formats)
    layers, experts, hidden = 36, 128, 2880
    matrices = layers * experts * 3 * hidden * hidden
    biases = layers * experts * (2 * hidden + hidden)
    assert parts["experts"] == matrices * 17 // 32 + 2 * biases  # 4 bits, and 8 for each 32
    assert parts["embedding"] == parts["head"] == 2 * 201_088 * hidden
    assert parts["attention"] == 2 * layers * (5120 * hidden + 5120 + 4096 * hidden + hidden)
    assert sum(parts.values()) == resident_weight_bytes(spec, formats)


@pytest.mark.parametrize(("name", "active"), [("gpt-oss-20b", 3.6e9), ("gpt-oss-120b", 5.1e9)])
def test_a_token_reads_what_is_active_in_its_format(name: str, active: float) -> None:
    spec, formats = formats_of(PRESETS[name].config)
    plain = weight_bytes(work(spec, decode_equal(1, 100), Formats(dtype="bfloat16")))
    # OpenAI counts the head's matrix as active and the embedding's not: their "Active" is what a step of one token reads.
    assert plain / 2 == pytest.approx(active, rel=0.02)
    read = weight_bytes(work(spec, decode_equal(1, 100), formats))
    assert read < 0.6 * plain
    many = weight_bytes(work(spec, decode_equal(4096, 100), formats))
    embedding = weight_bytes_by_part(spec, formats)["embedding"]
    assert many + embedding == pytest.approx(resident_weight_bytes(spec, formats), rel=0.01)


def test_blocks_share_a_scale_of_32_bits() -> None:
    spec, formats = formats_of(llama(BLOCKS))
    parts = weight_bytes_by_part(spec, formats)
    up, down = 1280 * 256 + 4 * 10 * 2, 256 * 640 + 4 * 2 * 5
    assert parts["feed-forward"] == 4 * (up + down)
    assert parts["head"] == 2 * 512 * 256
    assert formats.matrices.compute == "fp8"
    rows = formats_of(llama({"quant_method": "fbgemm_fp8"}))[1]
    assert rows.matrices.matrix_bytes(1280, 256) == 1280 * (256 + 4)
    whole = formats_of(llama({"quant_method": "fp8"}))[1]
    assert whole.matrices.matrix_bytes(1280, 256) == 1280 * 256
    # A row or a block that is not full has a scale all the same.
    assert formats.matrices.matrix_bytes(129, 130) == 129 * 130 + 4 * 2 * 2


@pytest.mark.parametrize(
    "kept",
    [
        ["model.layers.*.self_attn", "model.layers.0.mlp", "lm_head"],
        [f"model.layers.{i}.self_attn.{part}_proj" for i in range(4) for part in "qkvo"]
        + [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")],
        ["self_attn", "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj", "layers.0.mlp.down_proj"],
    ],
)
def test_modules_that_are_left_as_they_were_have_their_bytes(kept: list[str]) -> None:
    spec, formats = formats_of(llama({**BLOCKS, "modules_to_not_convert": kept}))
    stored = formats_of(llama(BLOCKS))[1]
    plain = weight_bytes_by_part(spec, Formats(dtype="bfloat16"))
    parts, all_stored = weight_bytes_by_part(spec, formats), weight_bytes_by_part(spec, stored)
    assert parts["attention"] == plain["attention"]
    assert 4 * parts["feed-forward"] == plain["feed-forward"] + 3 * all_stored["feed-forward"]
    # What a step reads is that, layer by layer, and each kind of layer is multiplied in its own type.
    ops = {op.name: op for op in work(spec, decode_equal(1, 10), formats)}
    assert (ops["feed_forward_up"].count, ops["feed_forward_up"].dtype) == (3, "fp8")
    assert (ops["feed_forward_up_kept"].count, ops["feed_forward_up_kept"].dtype) == (1, "bfloat16")
    assert (ops["qkv"].count, ops["qkv"].dtype) == (4, "bfloat16")
    read = weight_bytes(ops.values())
    assert read == resident_weight_bytes(spec, formats) - parts["embedding"] + 2 * 256
    assert layer_weight_bytes(spec, formats) * 4 == pytest.approx(parts["attention"] + parts["feed-forward"] + 2 * 4 * 2 * 256, abs=4)


def test_layers_that_differ_have_bytes_of_their_own() -> None:
    name = "deepseek-v3"
    spec, formats = formats_of(PRESETS[name].config, name)
    layers, parts = weight_bytes_by_layer(spec, formats), weight_bytes_by_part(spec, formats)
    assert len(layers) == 61
    assert len(set(layers[:3])) == len(set(layers[3:])) == 1
    assert layers[0] < layers[3] / 10
    assert sum(layers) == sum(parts.values()) - parts["embedding"] - parts["head"] - 2 * spec.hidden  # of which the last norm


def test_expressions_and_blocks_of_compressed_tensors() -> None:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128]}
    stated = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": weights}}}
    _, formats = formats_of(llama({**stated, "ignore": ["lm_head", "re:.*self_attn.*"]}))
    assert formats.matrices.layers_kept("attention.qkv", 4) == 4
    assert formats.matrices.layers_kept("feed_forward.up", 4) == 0
    assert formats.matrices.matrix_bytes(256, 256) == 256 * 256 + 4 * 4
    assert formats.matrices.name == "compressed-tensors-fp8-block128"
    with pytest.raises(ModelError, match="regular expression"):
        read_outline(llama({**stated, "ignore": ["re:("]}), "m")


def test_a_router_is_not_what_its_name_begins() -> None:
    config = {**PRESETS["qwen3-30b-a3b"].config, "quantization_config": {**BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp.gate"]}}
    assert formats_of(config)[1].matrices.kept == ()


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"quant_method": "mxfp4"}, "experts"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size must be two sizes.*\[128\]"),
        ({"quant_method": "fp8", "weight_block_size": [0, True]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
        ({**BLOCKS, "modules_to_not_convert": ["model.layers.1.self_attn.q_proj"]}, "q_proj of layer 1 as it is and not self_attn.k_proj"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(stated: Any, said: str) -> None:
    with pytest.raises(ModelError, match=f"^m: quantization_config.*{said}") as caught:
        read_outline(llama(stated), "m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stated", [BLOCKS, {"quant_method": "fbgemm_fp8"}, {"quant_method": "mxfp4"}])
def test_what_runs_models_refuses_them_by_name_with_a_remedy(stated: dict[str, Any], tmp_path: Path) -> None:
    said = f"quant_method '{stated['quant_method']}': estimated .*and not run; use the checkpoint before quantisation"
    with pytest.raises(ModelError, match=said):
        read_spec(llama(stated), "m")
    (tmp_path / "config.json").write_text(json.dumps(llama(stated)))
    with pytest.raises(ModelError, match=said):
        describe(str(tmp_path), config_only=True)


def test_a_preset_in_such_a_format_is_not_run() -> None:
    assert parameter_count(PRESETS["llama-3.1-405b-fp8"].spec()) == parameter_count(PRESETS["llama-3.1-405b"].spec())
    for name in ("llama-3.1-405b-fp8", "meta-llama/Llama-3.1-405B-Instruct-FP8", "gpt-oss-20b"):
        with pytest.raises(ModelError, match=r"not run|not supported"):
            describe(name, config_only=True)


def test_other_formats_are_not_of_these() -> None:
    for stated in (None, {}, "fp8", {"quant_method": "gptq", "bits": 4, "group_size": 128}, {"quant_method": ["fp8"]}):
        assert read_published(llama(stated), "m") is None


_values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.text(max_size=4)
    | st.lists(st.integers(-1, 130) | st.text(max_size=6), max_size=3)
)


@given(
    st.fixed_dictionaries(
        {"quant_method": st.sampled_from(["mxfp4", "fp8", "fbgemm_fp8"])},
        optional=dict.fromkeys(("weight_block_size", "modules_to_not_convert", "ignored_layers"), _values),
    )
)
def test_whatever_is_there_it_is_read_or_refused(stated: dict[str, Any]) -> None:
    refusal, found = "", None
    try:
        found = read_published(llama(stated), "m")
    except ModelError as error:
        refusal = str(error)
    assert bool(refusal) == (found is None)
    assert "\n" not in refusal
    assert found is None or found.named
