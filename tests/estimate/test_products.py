"""Weights of fewer bits in products of few and many rows, and attention of many short contexts: what the estimate adds for each."""

from __future__ import annotations

import pytest

from inferometer.estimate import Estimate, estimate
from inferometer.estimate.cost import OpTime
from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.presets import preset

MODEL = "opt-6.7b"


def _estimate(batch: int, *, quantize: str | None = "int8", stack: str = "native", device: str = "h200", context: int = 512) -> Estimate:
    asked = {"dtype": "bfloat16", "sequence_length": context, "decode_length": 2, "calibration": None}
    return estimate(MODEL, device, batch_size=batch, quantize=quantize, stack=stack, **asked)  # type: ignore[arg-type]


def _step(batch: int, **changes: object) -> float:
    found = _estimate(batch, **changes).decode_token_ms  # type: ignore[arg-type]
    assert found is not None
    return found


def _decoding(batch: int, quantize: str) -> tuple[OpTime, ...]:
    """The ops of a decode step."""
    return _estimate(batch, quantize=quantize).phases["decode_token_ms"].cost.ops


def _layers() -> int:
    """Elements of all layers' weights."""
    found = preset(MODEL)
    assert found is not None
    return found.spec().layers * layer_weight_bytes(found.spec(), Formats(dtype="float32")) // 4


@pytest.mark.parametrize(("quantize", "stored"), [("int8", 1.0), ("int4-g64", 0.5625)])
def test_many_rows_widen_a_weight_as_a_whole(quantize: str, stored: float) -> None:
    """It is read, and written in the activations' type, beside what the step takes with plain weights."""
    for batch in (144, 192):
        beside_ms = _step(batch, quantize=quantize) - _step(batch, quantize=None)
        assert beside_ms == pytest.approx(_layers() * (stored + 2) / 4.3e12 * 1e3, rel=0.15)


def test_a_breakdown_has_the_widening_as_memory_traffic() -> None:
    few, many = ([each for each in _decoding(batch, "int8") if each.op.name.endswith("_widened")] for batch in (64, 144))
    assert not few
    assert {each.binds for each in many} == {"memory"}
    assert sum(each.bytes for each in many) >= 3 * _layers()


def test_a_kernel_that_widens_on_the_way_has_instructions_to_issue() -> None:
    """Up to 16 rows the bytes decide in 8 bits, the instructions in 4; beyond that instructions in both."""
    int8, int4 = ({rows: _step(rows, quantize=name, context=32) for rows in (4, 5, 16, 17)} for name in ("int8", "int4-g64"))
    assert int8[5] < 1.1 * int8[4]
    assert int8[17] > 1.2 * int8[16]
    assert int4[5] > 1.2 * int4[4]
    assert int4[17] > 1.1 * int8[17]


def test_a_hopper_widens_small_maps_alone_for_up_to_128_rows() -> None:
    """Of opt-6.7b's the output map, which has no more than 2^24 weights; all of int4's."""
    widened = {name: {each.op.shape for each in _decoding(80, name) if each.op.name.endswith("_widened")} for name in ("int8", "int4-g64")}
    assert widened["int8"] == {(4096, 4096)}
    assert len(widened["int4-g64"]) > 2


def test_matrix_units_that_read_bytes_leave_less_to_widen() -> None:
    """An A100's int8 is widened in registers as int4 is: what 64 rows take beyond 16 is more of a step there."""
    hopper, ampere = (_step(64, device=name, context=32) / _step(16, device=name, context=32) for name in ("h200", "a100-sxm-80gb"))
    assert 1.3 < hopper < 0.75 * ampere


@pytest.mark.parametrize("quantize", ["w8a8", "fp8"])
def test_what_is_multiplied_as_it_lies_is_widened_nowhere(quantize: str) -> None:
    assert not any(each.op.name.endswith("_widened") for each in _decoding(80, quantize) if each.op.kind == "gemm")
    assert _step(80, quantize=quantize) < _step(80, quantize=None)


def test_other_stacks_kernels_widen_any_number_of_rows() -> None:
    assert all(_step(batch, stack="gpt-fast") < _step(batch, stack="gpt-fast", quantize=None) for batch in (1, 32, 80))


def test_a_row_of_few_keys_takes_longer_than_their_bytes() -> None:
    """Each head of each row begins and ends; of long contexts that is done while keys come."""
    rows, heads, layers = 1024, 32, 32
    begun_ms = rows * heads * layers * 0.7e-6 / 132 * 1e3
    short, longer, long = (_step(rows, quantize=None, context=context) for context in (16, 80, 1000))
    keys_ms = rows * 2 * 4096 * 2 * layers / 4.3e12 * 1e3  # of one position
    assert short - _step(1, quantize=None, context=16) > begun_ms
    assert longer - short < 0.9 * 64 * keys_ms
    assert long - longer > 0.9 * 920 * keys_ms - begun_ms


def test_prompts_are_queued_before_the_device_begins() -> None:
    """As many tokens of many prompts take longer than of few, by what the host does for each."""
    many, few = (_estimate(batch, quantize=None, context=4096 // batch).prefill_ms or 0.0 for batch in (1024, 64))
    assert 10 < (many - few) / (1024 - 64) * 1e3 < 20
