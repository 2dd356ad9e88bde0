"""quantization_config as checkpoints hold it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import ModelError
from inferometer.model.formats import weight_format
from inferometer.model.quantisation import METHODS, Quantisation, read_quantisation

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
TOKEN = {"num_bits": 8, "symmetric": True, "dynamic": True, "strategy": "token"}


def compressed(form: Any, weights: Any, activations: Any = None, **more: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": scheme}, "ignore": ["lm_head"], **more}


def read(config: Any) -> Quantisation | None:
    return read_quantisation({"quantization_config": config}, "m")


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (None, None),
        ({}, None),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "damp_percent": 0.1},
            Quantisation(method="gptq", element="int4", group=128, symmetric=False, ordered=True, offset=1),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
            Quantisation(method="gptq", element="int4", symmetric=False),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True},
            Quantisation(method="awq", element="int4", group=64, symmetric=False),
        ),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, Quantisation(method="awq", element="int4", group=128, symmetric=False)),
        (compressed("pack-quantized", INT4), Quantisation(method="compressed-tensors", element="int4", group=128)),
        (
            compressed("pack-quantized", INT4, kv_cache_scheme=None, sparsity_config={"format": "dense", "global_sparsity": 0.1}),
            Quantisation(method="compressed-tensors", element="int4", group=128),
        ),
        (
            compressed("int-quantized", INT8, TOKEN | {"type": "int"}),
            Quantisation(method="compressed-tensors", element="int8", rounds=True),
        ),
        (compressed("float-quantized", FP8, TOKEN | {"type": "float"}), Quantisation(method="compressed-tensors", element="fp8")),
        (
            {"quant_method": "inferometer", "version": 2, "format": "w8a8"},
            Quantisation(method="inferometer", element="int8", rounds=True, form="w8a8"),
        ),
        (
            {"quant_method": "inferometer", "version": 1, "format": "w8a8"},  # of before heads were rounded
            Quantisation(method="inferometer", element="int8", rounds=True, form="w8a8-kept-head"),
        ),
    ],
)
def test_what_is_read(config: Any, wanted: Quantisation | None) -> None:
    assert read(config) == wanted
    if wanted is not None:
        assert wanted.weights.bits in (4, 8)
        assert replace(weight_format(wanted.named, "float16"), name="") == replace(wanted.weights, name="")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("gptq", "object"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "'fp8'"),
        ({"quant_method": ["gptq"]}, "'gptq'"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits = 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 100}, "group_size = 100"),
        ({"quant_method": "gptq", "bits": 4, "group_size": True}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": "yes"}, "desc_act"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}, "Marlin"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "gemv"),
        ({"quant_method": "inferometer", "version": 3, "format": "int8"}, "version 3"),
        ({"quant_method": "inferometer", "version": 2, "format": "awq-kept-head"}, "'awq-kept-head'"),
        ({"quant_method": "inferometer", "version": 1, "format": "gptq"}, "'gptq'"),
        ({"quant_method": "modelopt"}, "for estimates mxfp4, fp8, fbgemm_fp8"),
        (compressed("marlin-24", INT4), "marlin-24"),
        (compressed(["pack-quantized"], INT4), "format ['pack-quantized'] is not supported"),
        (compressed("pack-quantized", INT8), "8 bits"),
        (compressed("pack-quantized", INT4, TOKEN | {"type": "int"}), "activations"),
        (compressed("int-quantized", INT8, TOKEN | {"type": "int", "dynamic": False}), "fixed scale"),
        (compressed("int-quantized", INT8 | {"symmetric": False}), "zero points"),
        (compressed("float-quantized", FP8 | {"strategy": "block"}), "block"),
        (compressed("int-quantized", INT8, kv_cache_scheme={"num_bits": 8}), "--kv-dtype"),
        (compressed("pack-quantized", INT4, sparsity_config={"format": "sparse-24-bitmask"}), "sparse"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}, "one group"),
    ],
)
def test_what_is_refused(config: Any, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(config)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 200)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["int", "group", "gemm", *METHODS]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["weights", "input_activations", "num_bits", "type", "group_0"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_OPTIONS = ("bits", "group_size", "desc_act", "format", "version", "config_groups", "checkpoint_format", "zero_point", "kv_cache_scheme")


@given(st.fixed_dictionaries({"quant_method": st.sampled_from(METHODS) | _values}, optional=dict.fromkeys(_OPTIONS, _values)))
def test_whatever_is_there_it_is_read_or_refused(config: dict[str, Any]) -> None:
    refusal, found = "", None
    try:
        found = read(config)
    except ModelError as error:
        refusal = str(error)
    assert bool(refusal) == (found is None)
    assert "\n" not in refusal
    assert found is None or found.weights.matrix_bytes(3, 70) > 0
