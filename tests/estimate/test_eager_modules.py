"""What transformers' modules do operation by operation is priced as that, and what they wait for by the clock they wait on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferometer.estimate import Estimate, estimate
from inferometer.estimate.attention import Attention
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.machine import machine
from inferometer.estimate.stack import Stack, find_stack
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec
from inferometer.model.step import decode_equal, prefill
from inferometer.model.work import work


def _spec(name: str, **changes: Any) -> ModelSpec:
    found = preset(name)
    assert found is not None
    return replace(found.spec(), **changes)


def _estimate(spec: ModelSpec, stack: str = "hf-eager", rows: int = 1024, device: str = "h200") -> Estimate:
    asked = {"batch_size": rows, "sequence_length": 10, "decode_length": 2, "dtype": "bfloat16", "stack": stack, "calibration": None}
    found: Estimate = estimate(spec, device, **asked)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("model", "passes"), [("doc004-1.3b", 10.5), ("gpt2-xl", 9.0)])
def test_an_activation_that_is_spelled_out_goes_through_memory_once_an_operation(model: str, passes: float) -> None:
    spelled, whole = (_estimate(_spec(model, activation=each)).phases["prefill_ms"].cost for each in ("gelu_tanh", "gelu"))
    assert spelled.kinds["activation"] > 0.8 * passes * whole.kinds["activation"]
    launches = [sum(each.launches for each in cost.ops if each.op.kind == "activation") for cost in (spelled, whole)]
    layers = _spec(model).layers
    assert launches[1] == 2 * layers
    assert launches[0] == (9 if model == "doc004-1.3b" else 8) * layers


@pytest.mark.parametrize(("family", "stack"), [("gpt_bigcode", "hf-eager"), ("bloom", "deepspeed"), ("bloom", "hf-compile")])
def test_one_that_is_a_kernel_does_not(family: str, stack: str) -> None:
    spec = _spec("doc004-1.3b", family=family)
    tanh, exact = (_estimate(replace(spec, activation=each), stack).phases["prefill_ms"].cost.kinds for each in ("gelu_tanh", "gelu"))
    assert tanh["activation"] == pytest.approx(exact["activation"], rel=0.2)


def test_blocks_of_one_query_take_as_many_cycles_on_any_device() -> None:
    step, spec, formats = decode_equal(512, 60), _spec("doc004-1.3b"), Formats(dtype="bfloat16")
    op = next(each for each in work(spec, step, formats) if each.name.endswith("attention_scores"))

    def cycles(slug: str) -> float:
        device = find_device(slug)
        attention = Attention(spec=spec, stack=find_stack("hf-eager"), machine=machine(device, limits(device)), formats=formats)
        assert device.multiprocessors is not None
        assert device.boost_clock_hz is not None
        return attention.op(op, step)[0] * device.multiprocessors * device.boost_clock_hz

    assert cycles("h200") == pytest.approx(cycles("a100-sxm-80gb"))


def test_products_of_short_prompts_take_a_block_each() -> None:
    spec, formats, device = _spec("doc004-1.3b"), Formats(dtype="bfloat16"), find_device("h200")

    def seconds(prompts: int, length: int) -> float:
        step = prefill(prompts, length)
        op = next(each for each in work(spec, step, formats) if each.name.endswith("attention_scores"))
        attention = Attention(spec=spec, stack=find_stack("deepspeed"), machine=machine(device, limits(device)), formats=formats)
        return attention.op(op, step)[0]

    assert seconds(512, 10) == pytest.approx(seconds(512, 4)) == pytest.approx(512 * seconds(1, 10))
    assert seconds(512, 1000) > 10 * seconds(512, 10)


@pytest.mark.parametrize(
    ("stack", "rows", "added"), [("hf-eager", 1024, 0.0), ("hf-eager", 1, 1.5), ("deepspeed", 1024, 1.5), ("tgi", 1024, 2.0)]
)
def test_bookkeeping_goes_by_beside_the_device_where_no_token_is_read(stack: str, rows: int, added: float) -> None:
    step, device, formats = decode_equal(rows, 60), find_device("h200"), Formats(dtype="bfloat16")

    def ms(found: Stack) -> float:
        layout = Layout(devices=1, parallel="tensor")
        deployment = Deployment(
            spec=_spec("doc004-1.3b"), device=device, stack=found, layout=layout, formats=formats, limits=limits(device), power=None
        )
        return deployment.cost(step).ms

    whole = find_stack(stack)
    assert ms(whole) - ms(whole.with_constants({"step_s": 0.0})) == pytest.approx(added, abs=0.05)
