"""What an estimate must be at its limits, whatever the constants: rooflines, hosts, power, several devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.estimate import Estimate, estimate
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.measured import load_calibration
from inferometer.estimate.power import power
from inferometer.estimate.stack import STACKS, Stack, find_stack
from inferometer.hardware.catalogue import find_device
from inferometer.model.description import describe
from inferometer.model.formats import Formats
from inferometer.model.step import Step, decode, prefill


def _estimate(model: str = "llama-2-7b", device: str = "a100-sxm-80gb", **changes: object) -> Estimate:
    asked: dict[str, object] = {"batch_size": 4, "sequence_length": 256, "decode_length": 32, "stack": "vllm", "calibration": None}
    return estimate(model, device, **(asked | changes))  # type: ignore[arg-type]


def _ms(found: Estimate) -> tuple[float, float]:
    assert found.prefill_ms is not None
    assert found.decode_token_ms is not None
    return found.prefill_ms, found.decode_token_ms


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm", "v100-sxm-32gb", "rtx-4090"])
def test_large_batches_reach_the_roofline(device: str) -> None:
    found = _estimate(device=device, batch_size=32, sequence_length=1024)
    assert 0.5 < found.bound["prefill_ms"] / (found.prefill_ms or 0.0) < 0.95


def test_a_single_sequence_reads_the_weights() -> None:
    found = _estimate(batch_size=1)
    assert 0.6 < found.bound["decode_token_ms"] / (found.decode_token_ms or 0.0) < 0.95


def test_prompts_that_are_recorded_wait_less_for_the_host() -> None:
    asked: dict[str, object] = {"model": "doc004-1.3b", "device": "h200", "stack": "native", "dtype": "bfloat16", "decode_length": 2}
    few = _ms(_estimate(**asked, batch_size=256, sequence_length=2))[0]
    many = _ms(_estimate(**asked, batch_size=257, sequence_length=2))[0]
    assert many > 1.4 * few
    # Twice a sweep that keeps the device busy for longer takes twice as long, whatever the host does.
    busy = [_ms(_estimate(**asked, batch_size=rows, sequence_length=512))[0] for rows in (32, 64)]
    assert 1.9 < busy[1] / busy[0] < 2.1


def test_whole_texts_that_are_recorded_wait_for_no_launches() -> None:
    asked: dict[str, object] = {"device": "h200", "forward_only": True, "decode_length": None}
    bert = {
        stack: _estimate("bert-base", stack=stack, batch_size=4, sequence_length=32, **asked).forward_ms for stack in ("native", "hf-eager")
    }
    assert bert["native"] is not None
    assert bert["hf-eager"] is not None
    # Measured: 0.55 to 0.60 ms beside 4.1 to 4.9 of transformers.
    assert 0.5 < bert["native"] < 0.66
    assert bert["hf-eager"] > 6 * bert["native"]
    # Twice a pass that keeps the device busy takes twice as long, whatever the host does.
    busy = [_estimate("bert-base", stack="native", batch_size=rows, sequence_length=512, **asked).forward_ms or 0.0 for rows in (256, 512)]
    assert 1.9 < busy[1] / busy[0] < 2.1


def test_what_the_host_does_takes_time_where_it_is_the_device_as_well() -> None:
    stack = find_stack("native")
    tiny: dict[str, object] = {"model": "tiny-gpt2", "stack": "native", "sequence_length": 8, "decode_length": 8, "dtype": "float32"}
    for rows in (1, 64):
        here = _ms(_estimate(**tiny, device="cpu", batch_size=rows))
        own_ms = 1e3 * (stack.unhidden_s + rows * stack.unhidden_sequence_s)
        assert here[1] > own_ms
        assert here[0] > own_ms
    # A GPU has the next step before this one has ended.
    assert _ms(_estimate(**tiny, device="a100-sxm-80gb", batch_size=64))[1] < own_ms / 4


def _deployed(model: str, stack: Stack) -> Deployment:
    device = find_device("h200")
    return Deployment(
        spec=describe(model, config_only=True).spec, device=device, stack=stack, layout=Layout(devices=1),
        formats=Formats(dtype="bfloat16"), limits=limits(device, None), power=None,
    )  # fmt: skip


def _launches(where: Deployment, step: Step) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in where.cost(step).ops:
        found[each.op.kind] = found.get(each.op.kind, 0) + each.launches
    return found


def test_a_step_of_the_native_stack_has_as_many_kernels_as_the_engine_launches() -> None:
    """Norms are in the maps' launches for one row and have their own for two; positions are turned where attention is."""
    where = _deployed("llama-2-7b", find_stack("native"))
    layers = where.spec.layers
    one, two, prompt = (_launches(where, step) for step in (decode([512]), decode([512] * 2), prefill(1, 512)))
    assert (one["norm"], two["norm"]) == (0, 2 * layers + 1)
    assert one["rotary"] == two["rotary"] == 0
    assert prompt["rotary"] == layers
    assert {one[kind] for kind in ("attention", "activation")} == {layers}


def test_kernels_of_one_row_take_less_besides() -> None:
    stack = find_stack("native").with_constants({"scheduled_s": 0.0})  # as far as the device alone takes longer
    rows = (1, 2)
    ours, apart = (_deployed("opt-1.3b", each) for each in (stack, stack.with_constants({"lone_share": 1.0})))
    saved = [apart.cost(decode([512] * count)).ms - ours.cost(decode([512] * count)).ms for count in rows]
    launches = sum(_launches(ours, decode([512])).values())
    assert saved == pytest.approx([launches * (1 - stack.lone_share) * stack.kernel_s * 1e3, 0.0])
    assert find_stack("vllm").lone_share == 1.0


def test_the_host_binds_recorded_steps_of_the_smallest_models_alone() -> None:
    stack = find_stack("native")
    for model, share in (("gpt2-4x1024", 1.0), ("opt-6.7b", 0.0)):
        ours, unhosted = (_deployed(model, each) for each in (stack, stack.with_constants({"scheduled_s": 0.0})))
        found, device = (each.cost(decode([512])).ms for each in (ours, unhosted))
        assert found - device == pytest.approx(share * (stack.scheduled_s * 1e3 - device), abs=0.02)


def test_an_eager_host_binds_small_batches_and_not_large_ones() -> None:
    times = [_ms(_estimate("doc004-1.3b", stack="hf-eager", sequence_length=16, batch_size=batch))[1] for batch in (1, 8, 1024)]
    assert times[1] == pytest.approx(times[0], rel=0.02)
    assert times[2] > 2 * times[0]
    assert _ms(_estimate("doc004-1.3b", sequence_length=16, batch_size=1))[1] < times[0] / 3


def test_a_recorded_graph_hides_the_host() -> None:
    assert _ms(_estimate("opt-1.3b", stack="vllm"))[1] < _ms(_estimate("opt-1.3b", stack="vllm-eager"))[1]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["opt-1.3b", "bloom-560m", "llama-2-7b", "mixtral-8x7b", "gemma-2-9b"]),
    st.sampled_from(["t4", "l4", "a100-sxm-80gb", "rtx-4090", "h100-sxm", "mi300x"]),
    st.sampled_from(sorted(set(STACKS) - {"torch-eager-forward"})),
    st.integers(1, 200),
    st.integers(1, 1500),
    st.integers(1, 100),
)
def test_more_work_never_takes_less(model: str, device: str, stack: str, batch: int, length: int, more: int) -> None:
    def times(batch: int, length: int) -> tuple[float, float]:
        return _ms(_estimate(model, device, stack=stack, batch_size=batch, sequence_length=length))

    # A power limit ends between clocks that are a thousandth apart.
    least = times(batch, length)
    for larger in (times(batch + more, length), times(batch, length + more)):
        assert all(after >= before * 0.998 for before, after in zip(least, larger, strict=True))


def test_more_bandwidth_is_never_slower(tmp_path: Path) -> None:
    times = []
    for bandwidth in (1555, 2039, 4000):
        path = tmp_path / f"card-{bandwidth}.toml"
        path.write_text(f'base = "a100-sxm-80gb"\nmemory_bandwidth_gb_s = {bandwidth}\n')
        times.append(_ms(_estimate(device=str(path))))
    assert times[0][1] > times[1][1] > times[2][1]
    assert times[0][0] >= times[1][0] >= times[2][0]


def test_a_power_limit_lowers_the_clock_and_is_not_passed() -> None:
    card = find_device("rtx-a5000")
    found = _estimate("opt-6.7b", "rtx-a5000", batch_size=8, sequence_length=1024).phases["prefill_ms"].cost
    assert found.watts == pytest.approx(card.power_limit_w, rel=0.01)
    assert 0.5 < found.clock < 1
    # 70 to 75 of 111 TFLOP/s is what such a card sustains.
    rate = sum(part.op.flops * part.op.count for part in found.ops if part.op.kind == "gemm") / (found.kinds["gemm"] / 1e3)
    assert rate / 1e12 == pytest.approx(72, rel=0.12)


def test_measured_rates_hold_for_a_burst_and_then_the_clock_falls() -> None:
    measured = load_calibration("own-h200")
    found = [
        _estimate("opt-6.7b", "h200", stack="native", batch_size=batch, calibration=measured).phases["prefill_ms"].cost
        for batch in (8, 32, 128)
    ]
    assert found[0].ms < 100 < found[1].ms
    assert found[0].clock == 1 > found[1].clock > found[2].clock > 0.85
    assert all(each.watts == 700 for each in found)
    # A sequence takes as long as in a short batch, and up to a tenth longer.
    alone, later, last = (each.ms / batch for each, batch in zip(found, (8, 32, 128), strict=True))
    assert alone < later < last < 1.1 * alone


def test_decode_draws_less_than_prefill_and_more_than_nothing() -> None:
    found = _estimate("llama-2-7b", "h100-sxm", batch_size=8, sequence_length=1024)
    prefill, decode = (found.phases[phase].cost.watts or 0.0 for phase in ("prefill_ms", "decode_token_ms"))
    drawn = power(find_device("h100-sxm"))
    assert drawn is not None
    assert drawn.static_w < decode < prefill <= 700


def test_joules_count_every_device() -> None:
    one, four = (_estimate("llama-2-7b", "h100-sxm", tensor_parallel=count) for count in (1, 4))
    assert one.j_per_token is not None
    assert four.j_per_token is not None
    assert four.j_per_token > one.j_per_token


def test_layers_on_several_devices_take_turns() -> None:
    one, eight = _estimate("opt-6.7b"), _estimate("opt-6.7b", parallel="layers", gpus=8)
    assert _ms(eight)[1] == pytest.approx(_ms(one)[1], rel=0.05)
    assert _ms(eight)[1] > _ms(one)[1]
    assert eight.memory.weights < one.memory.weights / 6
    # Seven wait while one works.
    assert one.j_per_token is not None
    assert eight.j_per_token is not None
    assert one.j_per_token < eight.j_per_token < 8 * one.j_per_token


def test_cutting_feed_forward_blocks_alone_helps_less_than_cutting_layers() -> None:
    asked = {"device": "a100-sxm-80gb", "batch_size": 16, "sequence_length": 1024, "forward_only": True, "decode_length": None}
    times = [
        _estimate("clm-1.1b", stack="torch-eager-forward", loss=True, **asked, **how).forward_ms or 0.0  # type: ignore[arg-type]
        for how in ({}, {"parallel": "mlp-tensor", "gpus": 8}, {"parallel": "tensor", "tensor_parallel": 8})
    ]
    assert times[2] < times[1] < times[0]


def test_a_mixed_step_costs_more_than_either_and_less_than_both() -> None:
    found = _estimate(batch_size=16, mixed_tokens=512)
    assert found.mixed is not None
    alone = _ms(_estimate(batch_size=1, sequence_length=512))[0]
    assert max(alone, _ms(found)[1]) < found.mixed.cost.ms < alone + _ms(found)[1]


def test_fewer_bits_read_faster() -> None:
    times = [_ms(_estimate(batch_size=1, quantize=name))[1] for name in (None, "int8", "int4-g128")]
    assert times[0] > 1.3 * times[1] > 1.3 * times[2]


def test_every_answer_says_its_basis_and_how_to_verify_it() -> None:
    found = _estimate("opt-6.7b", stack="vllm").to_dict()
    assert "datasheet" in found["basis"]
    # vLLM and the others take what the Hub has; presets are this product's alone.
    assert "vllm bench latency --model facebook/opt-6.7b " in found["verify"]
    assert _estimate("doc004-1.3b", stack="deepspeed").verify.split("--model ")[1].startswith("doc004-1.3b ")
    assert _estimate("opt-6.7b", stack="hf-eager").verify.startswith("inferometer bench opt-6.7b ")
    native = _estimate("opt-6.7b", stack="native", forward_only=True, loss=True, decode_length=None).to_dict()
    assert native["verify"].endswith("--forward-only --loss")
    settings = {"quantize": "int8", "offload": "weights:0.5,pages", "admission": "diagonal", "group_size": 2, "num_groups": 3}
    every = _estimate("opt-6.7b", stack="native", batch_size=8, **settings).to_dict()["verify"]
    assert every.endswith(" --quantize int8 --offload weights:0.5,pages --admission diagonal --group-size 2 --num-groups 3")
    assert _estimate("opt-6.7b", stack="native", tensor_parallel=2, link="nvlink").to_dict()["verify"].endswith(" --tensor-parallel 2")
    for figure in ("prefill_ms", "decode_token_ms", "total_ms", "peak_memory_bytes", "j_per_token"):
        low, high = found["interval"][figure]
        assert low <= found[figure] <= high


def test_the_longest_context_fits_and_the_next_page_does_not() -> None:
    found = _estimate("llama-2-7b", "rtx-4090", stack="native")
    assert found.largest_context is not None
    assert found.largest_context > 256
    assert _estimate("llama-2-7b", "rtx-4090", stack="native", sequence_length=found.largest_context).fits
    limit = find_device("rtx-4090").usable_memory_bytes
    assert found.largest_context == 4096 - 32 or found.memory.device_bytes <= limit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel": "rows"}, "--parallel rows is unknown"),
        ({"parallel": "layers", "gpus": 64}, "--parallel layers: llama-2-7b has 32 layers"),
        ({"admission": "spiral"}, "--admission spiral is unknown"),
        ({"group_size": 4}, "--group-size goes with --admission"),
        ({"offload": "pages:2"}, "--offload pages:2: weights"),
        ({"num_groups": 4}, "--num-groups goes with --admission"),
        ({"offload": "weights:2"}, "--offload weights:2"),
        ({"offload": "weights", "device": "cpu"}, "has no link to its host"),
        ({"mixed_tokens": 0}, "--mixed-tokens"),
    ],
)
def test_impossible_ways_to_run_are_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _estimate(**changes)
    assert "\n" not in str(caught.value)
