"""Estimates of checkpoints in formats that are published and not run: bytes, times, what fits, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.estimate import Estimate, estimate

GIB = 2**30


def asked(model: str, device: str = "h100-sxm", **changes: Any) -> Estimate:
    settings = {"batch_size": 1, "sequence_length": 512, "decode_length": 64, "dtype": "auto", "stack": "vllm", "calibration": None}
    return estimate(model, device, **{**settings, **changes})


def gemm_ms(found: Estimate, phase: Any = "decode_token_ms") -> float:
    return found.phases[phase].cost.kinds["gemm"]


def test_gpt_oss_fits_where_its_makers_say() -> None:
    """120b into one GPU of 80 GB, 20b into 16 GB, and neither with its weights widened."""
    assert asked("gpt-oss-120b").fits
    assert asked("gpt-oss-20b", "rtx-4080").fits
    for model, device in (("gpt-oss-120b", "h100-sxm"), ("gpt-oss-20b", "rtx-4080")):
        wide = asked(model, device, quantize="none")
        assert not wide.fits
        assert wide.request.quantize is None
        assert wide.fit.remedies[0] == "--quantize mxfp4"
    assert asked("gpt-oss-120b").memory.weights == pytest.approx(60.8 * GIB, rel=0.002)
    largest = asked("gpt-oss-120b").largest_batch
    assert largest is not None
    assert asked("gpt-oss-120b", batch_size=largest).fits
    assert not asked("gpt-oss-120b", batch_size=largest + 1).fits


def test_a_step_is_as_much_faster_as_its_bytes_are_fewer_and_arithmetic_stays_that_of_16_bits() -> None:
    few, wide = asked("gpt-oss-120b"), asked("gpt-oss-120b", quantize="none")
    assert few.phases["decode_token_ms"].bound.ms < 0.6 * wide.phases["decode_token_ms"].bound.ms
    assert gemm_ms(few) < 0.8 * gemm_ms(wide)
    # Of many tokens arithmetic binds: no device multiplies by such weights faster than what they are widened to.
    many, many_wide = (asked("gpt-oss-20b", batch_size=64, sequence_length=4096, quantize=form, gpus=1) for form in (None, "none"))
    assert many.phases["prefill_ms"].bound.compute_ms == pytest.approx(many_wide.phases["prefill_ms"].bound.compute_ms)
    assert gemm_ms(many, "prefill_ms") == pytest.approx(gemm_ms(many_wide, "prefill_ms"), rel=0.05)


@pytest.mark.parametrize("stack", ["native", "vllm"])
def test_more_rows_never_take_less(stack: str) -> None:
    """Whatever kernels of ours do with weights of other formats, at so many rows one thing and at more another."""
    times = [
        asked("gpt-oss-20b", stack=stack, sequence_length=length, decode_length=1).prefill_ms or 0.0
        for length in (256, 512, 528, 1024, 2048)
    ]
    assert times[0] > 0
    assert sorted(times) == times


def test_more_tokens_touch_more_experts() -> None:
    one, sixteen = (asked("gpt-oss-120b", batch_size=batch).phases["decode_token_ms"].bound.memory_ms for batch in (1, 16))
    assert 5 < sixteen / one < 16


@pytest.mark.parametrize(("device", "multiplied"), [("h100-sxm", "fp8"), ("a100-sxm-80gb", "bfloat16")])
def test_blocks_of_fp8_are_multiplied_in_it_where_the_device_does(device: str, multiplied: str) -> None:
    plain, blocks = asked("qwen3-32b", device, dtype="bfloat16"), asked("qwen3-32b-fp8", device)
    compute = [found.phases["prefill_ms"].bound.compute_ms for found in (plain, blocks)]
    assert compute[1] == pytest.approx(compute[0] * (0.5 if multiplied == "fp8" else 1), rel=0.06)
    memory = [found.phases["decode_token_ms"].bound.memory_ms for found in (plain, blocks)]
    assert memory[1] / memory[0] == pytest.approx(0.51, abs=0.02)
    assert ("products in fp8" in (blocks.weights_format or "")) == (multiplied == "fp8")


def test_fp8_of_405b_in_one_machine_of_8() -> None:
    """For which Meta published it: eight GPUs of 80 GB have no room for 16 bits."""
    assert asked("llama-3.1-405b-fp8", tensor_parallel=8).fits
    assert not asked("llama-3.1-405b", tensor_parallel=8).fits


def test_devices_with_layers_of_their_own_hold_the_larger_of_them() -> None:
    """61 layers on eight devices: the fullest has eight, of experts, and the embedding or the head."""
    found = asked("deepseek-v3", "h200", gpus=8, parallel="layers", stack="hf-eager").memory.weights
    assert found == pytest.approx(8 * 11.54e9 + 1.85e9, rel=0.005)


def test_layers_that_differ_are_counted() -> None:
    said = asked("llama-3.1-405b-fp8", tensor_parallel=8).weights_format
    assert said is not None
    assert said.startswith("feed-forward of 124 of 126 layers in fbgemm-fp8 (e4m3, 32 bits of scale for each row), all else in bfloat16")


def test_weights_that_are_plain_have_no_such_words() -> None:
    assert asked("qwen3-32b").weights_format is None
    assert asked("opt-1.3b", quantize="int8", stack="native", dtype="float16").weights_format is None
    assert asked("gpt-oss-20b", quantize="none").weights_format is None


def test_what_is_asked_of_them_is_done_or_refused_in_one_line() -> None:
    own = asked("gpt-oss-20b")
    assert own.request.formats.dtype == "bfloat16"
    assert asked("gpt-oss-20b", quantize="mxfp4").decode_token_ms == own.decode_token_ms
    half = asked("gpt-oss-20b", dtype="float16")
    assert (half.request.formats.dtype, half.memory.weights) == ("float16", own.memory.weights)
    assert asked("gpt-oss-20b", dtype="float32").memory.weights > own.memory.weights
    assert asked("qwen3-8b", quantize="none").decode_token_ms == asked("qwen3-8b").decode_token_ms
    for quantize in ("int8", "fp8", "gptq", "nonsense"):
        with pytest.raises(UserError, match=f"^--quantize {quantize}: the checkpoint is in mxfp4 already; .*--quantize none .*bfloat16$"):
            asked("gpt-oss-20b", quantize=quantize)


@pytest.mark.parametrize("stack", ["native", "vllm", "hf-eager", "flexgen", "deepspeed"])
@pytest.mark.parametrize("model", ["opt-1.3b", "gpt-oss-20b", "llama-2-7b"])
def test_parts_add_up_to_the_weights(stack: str, model: str) -> None:
    """FlexGen's head of its own included, which opt-1.3b's is the embedding's elsewhere."""
    found = asked(model, stack=stack, dtype="float16")
    assert sum(found.breakdown["weights_by_part"].values()) == found.memory.weights
