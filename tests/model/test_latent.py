"""Attention over one vector a token: sizes, cache and work, as published and as they follow from the matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferometer.errors import ModelError
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats, kv_bytes_per_token
from inferometer.model.ops import Op, kv_bytes, tensor_flops, weight_bytes
from inferometer.model.outline import read_outline
from inferometer.model.parameters import parameter_count, parameters
from inferometer.model.presets import PRESETS
from inferometer.model.published import read_published
from inferometer.model.shard import Shard
from inferometer.model.spec import Latent, ModelSpec
from inferometer.model.step import Share, Step, decode_equal, prefill
from inferometer.model.work import work

V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "vocab_size": 102_400, "hidden_size": 2048, "intermediate_size": 10_944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163_840,
}  # fmt: skip


def v3() -> ModelSpec:
    return PRESETS["deepseek-v3"].spec()


def attention(ops: tuple[Op, ...]) -> int:
    """FLOPs of scores and values."""
    return sum(op.count * op.flops for op in ops if op.kind == "attention" and op.unit == "tensor")


def test_deepseek_v3_is_as_large_as_its_own_files_say() -> None:
    """README_WEIGHTS.md of the checkpoint: 671B parameters, 36.6B active with the head's 0.9B; its makers in 2025: 70 KB a token."""
    spec = v3()
    assert parameter_count(spec) / 1e9 == pytest.approx(671, abs=0.5)
    assert weight_bytes(work(spec, decode_equal(1, 100), Formats())) / 2e9 == pytest.approx(36.6, abs=0.05)
    assert kv_bytes_per_token(spec, Formats()) == 70_272


def test_with_the_module_that_predicts_a_further_token_its_checkpoint_is_689_gb() -> None:
    """That is a layer more, a map from twice the width, and the embedding and the head again."""
    spec, found = v3(), read_published(PRESETS["deepseek-v3"].config, "x")
    assert found is not None
    formats = Formats(dtype="bfloat16", weights=found.weights(spec, "x"))
    assert resident_weight_bytes(spec, formats) / 1e9 == pytest.approx(673, abs=0.5)
    further = 2 * spec.hidden * (spec.vocabulary + spec.hidden)
    assert (parameter_count(replace(spec, layers=62)) + further) / 1e9 == pytest.approx(685, abs=1)
    again = 2 * spec.hidden * (2 * spec.vocabulary) + 2 * spec.hidden * spec.hidden
    assert (resident_weight_bytes(replace(spec, layers=62), formats) + again) / 1e9 == pytest.approx(689, abs=1)


def test_v2_lite_makes_queries_of_the_hidden_state() -> None:
    spec = read_outline(V2_LITE, "lite")
    assert spec.latent == Latent(rank=512, rotated=64, unrotated=128, values=128)
    assert parameter_count(spec) / 1e9 == pytest.approx(15.7, abs=0.05)
    assert spec.unrun == "mixtures of experts"
    assert replace(spec, experts=None).unrun == "latent attention"


def test_no_shared_experts_may_be_said_as_0_or_null() -> None:
    none = read_outline(V2_LITE | {"n_shared_experts": 0}, "lite")
    assert none == read_outline(V2_LITE | {"n_shared_experts": None}, "lite")
    assert none.experts is not None
    assert none.experts.shared == 0


@pytest.mark.parametrize("option", ["n_shared_experts", "first_k_dense_replace"])
@pytest.mark.parametrize("value", [-1, False, 0.0, 2**31])
def test_what_is_no_count_is_refused_with_the_counts_that_are(option: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"^lite: {option} must be a whole number from 0 to 2147483647, not {value}$"):
        read_outline(V2_LITE | {option: value}, "lite")


@pytest.mark.parametrize("every", [2, 27])
def test_experts_in_every_other_layer_are_refused_as_their_bytes_are_not_priced(every: int) -> None:
    assert read_outline(V2_LITE | {"moe_layer_freq": 1}, "lite") == read_outline(V2_LITE, "lite")
    with pytest.raises(ModelError, match=f"^lite: moe_layer_freq = {every} is not supported: experts in some layers alone"):
        read_outline(V2_LITE | {"moe_layer_freq": every}, "lite")


@pytest.mark.parametrize("spec", [v3(), read_outline(V2_LITE, "lite")], ids=["v3", "v2-lite"])
def test_every_map_is_multiplied_once_a_token_and_read_once(spec: ModelSpec) -> None:
    dense = replace(spec, experts=None, layers=3)
    matrices = [p for p in parameters(dense) if len(p.shape) == 2 and not p.name.startswith("embedding.")]
    for step in (decode_equal(2, 7), prefill(2, 5)):
        ops = work(dense, step, Formats())
        layers = sum(p.size for p in matrices if p.name.startswith("layers"))
        head = spec.vocabulary * spec.hidden
        assert tensor_flops(ops) - attention(ops) == 2 * (step.tokens * layers + step.logit_rows * head)
    read = weight_bytes(work(dense, decode_equal(1, 7), Formats()))
    assert read == 2 * (parameter_count(dense) - head + spec.hidden)


def test_a_context_is_read_once_for_scores_and_values_and_a_prompt_is_as_wide_as_its_heads() -> None:
    spec, formats = v3(), Formats()
    ops = work(spec, decode_equal(3, 1000), formats)
    assert kv_bytes(ops) == 3 * (1000 + 1) * 70_272
    assert attention(ops) == spec.layers * 3 * 1001 * 128 * 2 * (576 + 512)
    pairs = 2 * 100 * 101 // 2
    prompts = work(spec, prefill(2, 100), formats)
    assert attention(prompts) == spec.layers * pairs * 128 * 2 * (192 + 128)
    both = Step(shares=(*decode_equal(3, 1000).shares, Share(100, count=2)))
    assert attention(work(spec, both, formats)) == attention(ops) + attention(prompts)


def test_devices_share_heads_and_each_has_the_vectors() -> None:
    spec = v3()
    for count in (2, 8):
        local = Shard(1, count).local(spec)
        assert (local.heads, local.kv_heads, local.latent) == (128 // count, 1, spec.latent)
        assert kv_bytes_per_token(spec, Formats(shards=count)) == 70_272
        cut = {op.name: op for op in work(spec, decode_equal(1, 10), Formats(shards=count))}
        whole = {op.name: op for op in work(spec, decode_equal(1, 10), Formats())}
        for name in ("query_up", "latent_up", "attention_output"):
            assert cut[name].flops * count == whole[name].flops
        assert cut["latent_down"].flops == whole["latent_down"].flops


def test_a_cache_in_8_bits_is_half_of_it() -> None:
    assert kv_bytes_per_token(v3(), Formats(kv_dtype="fp8")) == 70_272 // 2


def test_modules_of_such_attention_may_be_left_as_they_are() -> None:
    config = {**PRESETS["deepseek-v3"].config}
    config["quantization_config"] = {**config["quantization_config"], "modules_to_not_convert": ["self_attn.kv_b_proj"]}
    found = read_published(config, "x")
    assert found is not None
    assert found.weights(v3(), "x").kept == (("attention.latent_up", 61),)


def test_sizes_that_contradict_each_other_are_none() -> None:
    with pytest.raises(ValueError, match="one head of keys"):
        replace(v3(), kv_heads=2)
    with pytest.raises(ValueError, match="positive"):
        Latent(rank=0, rotated=1, unrotated=1, values=1)
