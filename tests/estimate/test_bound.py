"""The bound: arithmetic by hand on small cases, and what must hold for every model and device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate import estimate
from inferometer.estimate.bound import bound, mean_bound, op_bound
from inferometer.estimate.limits import limits, rank_link
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import catalogue, find_device
from inferometer.hardware.links import link_between
from inferometer.model.formats import Formats, weight_format
from inferometer.model.ops import Op, compulsory_bytes, tensor_flops
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec
from inferometer.model.step import decode, forward, prefill
from inferometer.model.work import work

H100 = find_device("h100-sxm")


def _spec(name: str) -> ModelSpec:
    found = preset(name)
    assert found is not None
    return found.spec()


def _calibration(**changes: object) -> Calibration:
    figures: dict[str, object] = {
        "device": "cuda:0",
        "device_name": "NVIDIA H100 80GB HBM3",
        "slug": "h100-sxm",
        "measured_at": "2025-01-01T00:00:00+00:00",
        "torch_version": "2.13.0",
        "threads": None,
        "seconds_spent": 9.0,
        "copy_bandwidth_bytes_s": 2e12,
        "read_bandwidth_bytes_s": 3e12,
        "matmul_flop_s": {"float16": 5e14},
        "launch_s": 4e-6,
    }
    return Calibration(**(figures | changes))  # type: ignore[arg-type]


def test_an_ops_bound_by_hand() -> None:
    known = limits(H100)
    read = Op(kind="gemm", name="read", shape=(1, 1, 1), unit="tensor", dtype="float16", flops=2, bytes_read=3350)
    assert op_bound(read, known) == ("memory", pytest.approx(3350 / 3.35e12, rel=0.01))
    multiply = replace(read, flops=10**12)
    assert op_bound(multiply, known) == ("compute", pytest.approx(10**12 / known.matmul_flop_s("float16")))
    send = Op(kind="collective", name="send", shape=(1, 1), unit="vector", dtype="float16", collective_bytes=450)
    linked = limits(H100, link=link_between(H100, 2))
    assert op_bound(send, linked) == ("link", pytest.approx(450 / 450e9))
    with pytest.raises(ValueError, match="link"):
        op_bound(send, known)


def test_decode_of_one_sequence_is_its_bytes_over_the_bandwidth() -> None:
    ops = work(_spec("llama-2-7b"), decode([1000]), Formats())
    found = bound(ops, limits(H100))
    assert found.binds == "memory"
    assert found.ms == pytest.approx(compulsory_bytes(ops) / 3.35e12 * 1e3, rel=0.01)
    assert found.shares["memory"] > 0.99


def test_a_long_prefill_is_its_flops_over_the_rate() -> None:
    known = limits(H100)
    ops = work(_spec("llama-2-7b"), prefill(8, 2048), Formats())
    found = bound(ops, known)
    assert found.binds == "compute"
    assert found.ms == pytest.approx(tensor_flops(ops) / known.matmul_flop_s("float16") * 1e3, rel=0.03)
    assert sum(found.kinds.values()) == pytest.approx(found.ms)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_the_link_binds_shards_over_a_slow_one() -> None:
    card = find_device("rtx-4090")
    ops = work(_spec("llama-2-7b"), prefill(8, 512), Formats(shards=8))
    assert bound(ops, limits(card, link=link_between(card, 8))).binds == "link"


def test_measured_limits_replace_the_datasheets() -> None:
    ops = work(_spec("llama-2-7b"), decode([1000]), Formats())
    sheet, measured = bound(ops, limits(H100)), bound(ops, limits(H100, _calibration()))
    assert (sheet.basis, measured.basis) == ("datasheet", "calibrated")
    assert measured.ms / sheet.ms == pytest.approx(3.35 / 3.0, rel=0.01)


def test_a_measured_link_between_gpus_replaces_the_datasheets() -> None:
    """Over the fastest link alone: that is the one that was measured."""
    measured = _calibration(peer_bytes_s=380e9, peer_sum_s=2.3e-6)
    fast = limits(H100, measured, link_between(H100, 2)).link
    assert fast is not None
    assert (fast.copy_bytes_s, fast.word_s) == (380e9, 2.3e-6)
    slow = limits(H100, measured, link_between(H100, 2, "pcie5")).link
    assert slow is not None
    assert slow.copy_bytes_s is None
    step = prefill(1, 1024)
    ops = [op for op in work(_spec("opt-1.3b"), step, Formats(dtype="float16", shards=2)) if op.collective_bytes]
    sent = sum(op.count * op.collective_bytes for op in ops)
    assert bound(ops, limits(H100, measured, link_between(H100, 2))).ms == pytest.approx(sent / 380e9 * 1e3)


def test_sums_that_were_measured_go_with_the_fastest_link() -> None:
    measured = _calibration(sums_s={4: {1 << 20: 13e-6, 8192: 5e-6}, 2: {8192: 4e-6}})
    fast = limits(H100, measured, link_between(H100, 4)).link
    assert fast is not None
    assert fast.sums == ((2, ((8192, 4e-6),)), (4, ((8192, 5e-6), (1 << 20, 13e-6))))
    assert fast.sums_over(4)[1] == (1 << 20, 13e-6)
    assert fast.sums_over(3) == ()
    slow = limits(H100, measured, link_between(H100, 4, "pcie5")).link
    assert slow is not None
    assert slow.sums == ()


def test_ranks_on_a_cpu_have_a_part_of_it_and_the_sums_that_were_measured() -> None:
    cpu = find_device("cpu")
    measured = _calibration(device="cpu", slug="cpu", sums_s={2: {4096: 1e-4, 1 << 20: 2e-3}, 4: {4096: 3e-4, 1 << 20: 6e-3}})
    assert rank_link(None, 2) is None
    assert rank_link(_calibration(), 2) is None
    assert rank_link(measured, 5) is None
    assert rank_link(_calibration(device="cpu", slug="cpu", sums_s={2: {4096: 1e-4}, 4: {8192: 3e-4}}), 3) is None
    link = rank_link(measured, 3)
    assert link is not None
    assert link.sums_over(3) == ((4096, pytest.approx(2e-4)), (1 << 20, pytest.approx(4e-3)))
    alone, one = limits(cpu, measured), limits(cpu, measured, link, sharing=3)
    assert one.memory_bytes_s == pytest.approx(alone.memory_bytes_s / 3)
    assert one.matmul_flop_s("float32") == pytest.approx(alone.matmul_flop_s("float32") / 3)
    assert one.link is link


def test_an_uncalibrated_cpu_says_that_it_is_assumed() -> None:
    cpu = find_device("cpu")
    assert limits(cpu).basis == "assumed"
    measured = _calibration(device="cpu", slug="cpu", matmul_flop_s={"float32": 1e11})
    known = limits(cpu, measured)
    assert known.basis == "calibrated"
    assert known.matmul_flop_s("bfloat16") == 1e11


def test_a_type_that_the_device_lacks_is_widened() -> None:
    v100 = limits(find_device("v100-sxm-32gb"))
    assert v100.matmul_flop_s("fp8") == v100.matmul_flop_s("float16")
    assert v100.matmul_flop_s("bfloat16") == v100.matmul_flop_s("float32")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(catalogue())), st.sampled_from(["opt-1.3b", "bloom-560m", "llama-2-7b"]), st.integers(1, 64), st.integers(1, 900)
)
def test_more_work_never_has_a_lower_bound(slug: str, name: str, batch: int, context: int) -> None:
    known, spec = limits(find_device(slug)), _spec(name)

    def least(batch: int, context: int, quantize: str | None = None) -> float:
        formats = Formats(weights=None if quantize is None else weight_format(quantize, "float16"))
        return bound(work(spec, decode([context] * batch), formats), known).ms

    assert least(batch, context) <= least(batch + 1, context)
    assert least(batch, context) <= least(batch, context + 1)
    assert least(batch, context, "int4") <= least(batch, context)
    whole = bound(work(spec, forward(batch, context), Formats()), known).ms
    assert bound(work(spec, prefill(batch, context), Formats()), known).kinds["gemm"] <= whole


def test_the_mean_of_bounds_weighs_what_binds_by_time() -> None:
    spec, known = _spec("opt-1.3b"), limits(H100)
    steps = tuple(bound(work(spec, decode([context]), Formats()), known) for context in (10, 11))
    middle = mean_bound(steps)
    assert middle.ms == pytest.approx((steps[0].ms + steps[1].ms) / 2)
    assert sum(middle.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("shards", [2, 8])
def test_devices_must_tell_each_other_of_logits_what_is_wanted_of_them(shards: int) -> None:
    """By hand: a score and whose it is of each row, or two parts of a loss; whole logits where all are asked for."""
    spec, formats = _spec("bloom-560m"), Formats(dtype="float16", shards=shards)
    whole = -(-spec.vocabulary // shards) * 2
    for step, rows, each in (
        (decode([100] * 3), 3, 8),
        (prefill(4, 16), 4, 8),
        (forward(4, 16, loss=True), 64, 8),
        (forward(4, 16), 64, whole),
    ):
        (sent,) = (op.collective_bytes for op in work(spec, step, formats) if op.name == "logits_all_gather")
        assert sent == (shards - 1) * rows * each


@pytest.mark.parametrize("stack", ["native", "vllm", "hf-eager"])
@pytest.mark.parametrize("loss", [False, True])
def test_a_forward_on_several_devices_is_not_faster_than_its_bound(stack: str, loss: bool) -> None:
    found = estimate(
        "bloom-560m", "a100-sxm-80gb", batch_size=16, sequence_length=512, tensor_parallel=8, forward_only=True, loss=loss, stack=stack
    )
    assert found.phases["forward_ms"].bound.ms < found.phases["forward_ms"].cost.ms
    assert found.interval["forward_ms"][0] >= found.phases["forward_ms"].bound.ms
