"""Rotary positions of every kind and spelling, against transformers' own reading of the same configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.spec import DynamicScaling, LinearScaling, Llama3Scaling, ModelSpec, Rotary, YarnScaling

BASE: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(**options: Any) -> ModelSpec:
    return read_spec({**BASE, **options}, "tiny")


def rotary(**options: Any) -> Rotary:
    positions = read(**options).positions
    assert isinstance(positions, Rotary)
    return positions


def test_without_options_the_base_is_ten_thousand() -> None:
    assert rotary() == rotary(rope_scaling=None) == rotary(rope_parameters={}) == Rotary(10_000.0)
    assert rotary(rope_theta=500_000) == rotary(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}) == Rotary(500_000.0)


@pytest.mark.parametrize(
    ("kind", "options", "scaling", "limit"),
    [
        ("linear", {"factor": 4}, LinearScaling(4.0), 256),
        ("linear", {"factor": 2.5}, LinearScaling(2.5), 160),
        ("dynamic", {"factor": 2.0}, DynamicScaling(2.0, 64), None),
        ("llama3", {**LLAMA3, "original_max_position_embeddings": 16}, Llama3Scaling(8.0, 1.0, 4.0, 16), 64),
        ("llama3", LLAMA3, Llama3Scaling(8.0, 1.0, 4.0, 64), 64),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32}, YarnScaling(4.0, 32, 1.138629436111989), 128),
        ("yarn", {"factor": 1.5, "original_max_position_embeddings": 32}, YarnScaling(1.5, 32, 1.0405465108108164), 64),
        ("yarn", {"factor": 2.0, "attention_factor": 0.5, "truncate": False}, YarnScaling(2.0, 64, 0.5, truncate=False), 128),
        ("yarn", {"factor": 2, "beta_fast": 16, "beta_slow": 2}, YarnScaling(2.0, 64, 1.0693147180559945, 16.0, 2.0), 128),
    ],
)
@pytest.mark.parametrize("spelling", ["rope_scaling-type", "rope_scaling-rope_type", "rope_parameters-rope_type", "rope_parameters-type"])
def test_scalings_in_every_spelling(kind: str, options: dict[str, Any], scaling: Any, limit: int | None, spelling: str) -> None:
    option, key = spelling.split("-")
    given_options = {option: {key: kind, **options}, "rope_theta": 5e4}
    spec = read(**given_options)
    assert spec.positions == Rotary(5e4, scaling)
    assert spec.context_limit == limit


def test_the_old_spelling_wins_over_the_new_and_the_inner_base_over_the_outer() -> None:
    both = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}}
    assert rotary(**both) == Rotary(10_000.0, LinearScaling(2.0))
    assert rotary(rope_theta=5.0, rope_parameters={"rope_theta": 7.0}) == Rotary(7.0)


def test_the_outer_original_length_wins_as_in_transformers() -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 16}
    assert rotary(rope_scaling=scaling, original_max_position_embeddings=32).scaling == Llama3Scaling(8.0, 1.0, 4.0, 32)


factors = st.floats(1.0, 64.0)
yarn = st.fixed_dictionaries(
    {"rope_type": st.just("yarn"), "factor": st.one_of(st.none(), factors)},
    optional={
        "original_max_position_embeddings": st.integers(1, 128),
        "attention_factor": st.one_of(st.none(), st.floats(0.1, 2.0)),
        "mscale": st.one_of(st.none(), st.floats(0.0, 2.0)),
        "mscale_all_dim": st.one_of(st.none(), st.floats(0.0, 2.0)),
        "beta_fast": st.one_of(st.none(), st.floats(8.0, 64.0), st.just(0)),
        "beta_slow": st.one_of(st.none(), st.floats(0.5, 4.0)),
        "truncate": st.booleans(),
    },
)
llama3 = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": factors,
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(3.0, 8.0),
    },
    optional={"original_max_position_embeddings": st.integers(1, 64)},
)
others = st.one_of(
    st.fixed_dictionaries({"rope_type": st.sampled_from(["linear", "dynamic"]), "factor": factors}),
    st.fixed_dictionaries({"rope_type": st.just("default")}),
)


def _frequencies(positions: Rotary, dim: int) -> Any:
    """The inverse frequencies of a spec, from the papers' formulas, in float64."""
    torch = pytest.importorskip("torch")
    inverse = positions.theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scaling = positions.scaling
    if isinstance(scaling, LinearScaling):
        return inverse / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        turns = scaling.original_positions * inverse / (2 * torch.pi)
        smooth = (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor)
        return inverse * torch.lerp(torch.ones_like(smooth) / scaling.factor, torch.ones_like(smooth), smooth.clamp(0, 1))
    if isinstance(scaling, YarnScaling):
        base = torch.tensor(positions.theta, dtype=torch.float64).log()

        def dimension(turns: float) -> Any:
            return dim * torch.log(torch.tensor(scaling.original_positions / (turns * 2 * torch.pi), dtype=torch.float64)) / (2 * base)

        low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
        if scaling.truncate:
            low, high = low.floor(), high.ceil()
        low, high = max(float(low), 0.0), min(float(high), dim - 1.0)
        high = high + 0.001 if low == high else high
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        return inverse / scaling.factor * ramp + inverse * (1 - ramp)
    return inverse


@settings(max_examples=150, deadline=None)
@given(scaling=st.one_of(yarn, llama3, others), theta=st.floats(100.0, 1e7), outer=st.booleans())
def test_what_is_read_turns_as_transformers_does(scaling: dict[str, Any], theta: float, outer: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    options = {"rope_scaling": scaling, "rope_theta": theta} if outer else {"rope_parameters": {**scaling, "rope_theta": theta}}
    config = transformers.LlamaConfig(**json.loads(json.dumps({**BASE, **options})))
    theirs = LlamaRotaryEmbedding(config)
    spec = read(**options)
    positions = spec.positions
    assert isinstance(positions, Rotary)
    factor = positions.scaling.attention_factor if isinstance(positions.scaling, YarnScaling) else 1.0
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-12)
    torch.testing.assert_close(_frequencies(positions, spec.head_size), theirs.inv_freq.double(), rtol=2e-4, atol=1e-9)
    assert read_spec(config.to_dict(), "tiny") == spec


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}, "'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "'su'"),
        ({"rope_parameters": {"rope_type": None}}, "None"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "['yarn']"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": "2"}}, "'2'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("nan")}}, "nan"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e300}}, "context"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": "no"}}, "truncate"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e308}}, "beta_fast must be a number from"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1e-308}}, "beta_slow must be a number from"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": "yarn"}, "rope_parameters"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "0.25"),
        ({"head_dim": 7}, "even"),
        ({"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_is_not_run_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_whole_head_may_be_named_as_rotated() -> None:
    assert rotary(partial_rotary_factor=1.0) == rotary(rope_parameters={"partial_rotary_factor": 1}) == rotary(partial_rotary_factor=None)


def test_a_saved_yarn_configuration_reads_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.5}
    transformers.LlamaConfig(**BASE, rope_scaling=dict(scaling), rope_theta=7e4).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert read_spec(saved, "tiny") == read(rope_scaling=scaling, rope_theta=7e4)
