"""Runs of groups in the three orders, with weights resident or streamed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.estimate import Estimate, estimate
from inferometer.estimate.groups import sweeps
from inferometer.estimate.workload import Workload
from inferometer.schedule.groups import Diagonal
from inferometer.schedule.pages import PagePool
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.scheduler import Scheduler


def _estimate(order: str, **changes: object) -> Estimate:
    asked: dict[str, object] = {
        "batch_size": 64, "sequence_length": 128, "decode_length": 16, "admission": order, "group_size": 8, "calibration": None,
    }  # fmt: skip
    return estimate("opt-1.3b", "rtx-a6000", **(asked | changes))  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_order_does_all_the_work(groups: int, generated: int) -> None:
    for order in ("zigzag", "diagonal", "row"):
        found = sweeps(order, groups, generated)  # type: ignore[arg-type]
        assert sum(each.count * each.entering for each in found) == groups
        assert sum(each.count * each.decoding for each in found) == groups * (generated - 1)
    assert sum(each.count for each in sweeps("diagonal", groups, generated)) == groups + generated - 1


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 10))
def test_blocks_of_zigzag_do_all_the_work_and_never_have_more_groups(groups: int, generated: int, most: int) -> None:
    found = sweeps("zigzag", groups, generated, most)
    assert sum(each.count * each.entering for each in found) == groups
    assert sum(each.count * each.decoding for each in found) == groups * (generated - 1)
    assert all(each.entering + each.decoding <= most for each in found)
    assert sum(each.count for each in found) == -(-groups // most) * generated


@pytest.mark.parametrize("stack", ["native", "flexgen"])
def test_fewer_groups_in_flight_take_longer_and_never_less_than_their_bound(stack: str) -> None:
    for order in ("zigzag", "diagonal"):
        found = [_estimate(order, stack=stack, num_groups=most) for most in (1, 2, 4, 8, None)]
        times = [each.total_ms or 0.0 for each in found]
        assert min(times) > 0
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 4  # all eight are no limit
        for each in found:
            assert each.total_ms is not None
            assert each.least is not None
            assert each.total_ms >= each.least.ms


def test_blocks_of_one_group_are_a_row() -> None:
    assert _estimate("zigzag", num_groups=1).total_ms == pytest.approx(_estimate("row").total_ms)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 10), st.integers(1, 5))
def test_a_diagonal_of_so_many_groups_never_has_more(groups: int, generated: int, most: int, together: int) -> None:
    found = sweeps("diagonal", groups, generated, most, together)
    assert sum(each.count * each.entering for each in found) == groups
    assert sum(each.count * each.decoding for each in found) == groups * (generated - 1)
    assert all(each.entering + each.decoding <= most for each in found)
    assert all(each.entering <= together for each in found)


def test_one_batch_of_all_groups_is_faster_than_group_after_group() -> None:
    zigzag, diagonal, row = (_estimate(order).total_ms for order in ("zigzag", "diagonal", "row"))
    assert zigzag is not None
    assert diagonal is not None
    assert row is not None
    assert zigzag < diagonal < row


def test_a_stack_that_keeps_groups_apart_turns_between_them_in_zigzag_order() -> None:
    zigzag, diagonal = (_estimate(order, stack="flexgen").total_ms for order in ("zigzag", "diagonal"))
    assert zigzag is not None
    assert diagonal is not None
    assert zigzag > diagonal


def test_streamed_weights_cost_their_transfer_in_every_sweep_and_leave_the_memory() -> None:
    held, away = _estimate("zigzag"), _estimate("zigzag", offload="weights")
    half = _estimate("zigzag", offload="weights:0.5")
    assert held.total_ms is not None
    assert away.total_ms is not None
    assert half.total_ms is not None
    assert held.total_ms <= half.total_ms <= away.total_ms
    # 2.4 GB of layers over PCIe 4, once a sweep: one for each group's prompts here, and 15 that decode.
    assert away.total_ms >= 16 * 2.4e9 / 31.5e9 * 1e3
    assert away.memory.weights < half.memory.weights < held.memory.weights
    assert away.largest_batch is not None
    assert held.largest_batch is not None
    assert away.largest_batch > held.largest_batch


@pytest.mark.parametrize("order", ["zigzag", "diagonal", "row"])
def test_groups_of_one_token_are_gone_before_the_next_so_that_any_number_fits(order: str) -> None:
    found = _estimate(order, decode_length=1)
    assert found.fits
    assert found.largest_batch is None
    assert found.to_dict()["largest_batch"] is None
    assert found.largest_context is not None


def test_more_groups_share_what_comes() -> None:
    def tokens_a_second(batch: int) -> float:
        found = _estimate("zigzag", batch_size=batch, offload="weights")
        assert found.total_ms is not None
        return batch * 16 / found.total_ms

    assert tokens_a_second(64) > 3 * tokens_a_second(8)


def test_the_whole_run_is_prompts_and_steps_without_groups() -> None:
    found = _estimate("continuous", group_size=None)
    assert found.total_ms is not None
    assert found.prefill_ms is not None
    assert found.decode_token_ms is not None
    assert found.total_ms == pytest.approx(found.prefill_ms + 15 * found.decode_token_ms)


H100: dict[str, object] = {"sequence_length": 512, "decode_length": 32, "dtype": "bfloat16", "calibration": None}


def test_a_step_waits_for_the_link_and_its_bound_says_so() -> None:
    held, away = (estimate("opt-6.7b", "h100-sxm", batch_size=128, offload=offload, **H100) for offload in (None, "weights"))  # type: ignore[arg-type]
    layers = 32 * 402_759_680
    assert away.decode_token_ms == pytest.approx(1e3 * layers / (63.0e9 * 0.82), rel=0.01)
    assert away.bound["decode_token_ms"] == pytest.approx(1e3 * layers / 63.0e9, rel=0.01)
    assert (held.bound["binds"]["decode_token_ms"], away.bound["binds"]["decode_token_ms"]) == ("memory", "link")
    assert held.prefill_ms is not None
    assert away.prefill_ms is not None
    assert held.prefill_ms <= away.prefill_ms < 1.2 * held.prefill_ms, "six sweeps of prompts hide their weights"
    assert away.j_per_token is not None
    assert held.j_per_token is not None
    assert away.j_per_token > held.j_per_token
    assert away.memory.weights == held.memory.weights - 30 * 402_759_680


def test_the_diagonal_uses_the_link_while_prompts_run() -> None:
    """The published reasoning: 1,024 requests, 128 in flight: zigzag 477 tokens/s, diagonal 532, at 55 GB/s."""
    common = {"batch_size": 128, "offload": "weights", **H100}
    block = estimate("opt-6.7b", "h100-sxm", admission="zigzag", group_size=4, **common)  # type: ignore[arg-type]
    many = estimate("opt-6.7b", "h100-sxm", admission="diagonal", group_size=4, num_groups=32, **(common | {"batch_size": 1024}))  # type: ignore[arg-type]
    assert block.total_ms is not None
    assert many.total_ms is not None
    assert 430 < 128 * 32e3 / block.total_ms < 490
    assert 480 < 1024 * 32e3 / many.total_ms < 540
    assert many.memory.kv == block.memory.kv


def test_pages_on_the_host_come_and_go_too() -> None:
    asked = {"batch_size": 64, "sequence_length": 512, "decode_length": 8, "dtype": "bfloat16", "calibration": None}
    found, weights = (estimate("opt-6.7b", "h100-sxm", offload=what, **asked) for what in ("weights,pages", "weights"))  # type: ignore[arg-type]
    assert found.total_ms is not None
    assert 95 < 64 * 8e3 / found.total_ms < 120
    assert found.memory.kv < weights.memory.kv / 10
    assert found.to_dict()["offload"] == "weights,pages"


@pytest.mark.parametrize(("groups", "length", "pages"), [(32, 512, 8560), (16, 512, 4344), (8, 512, 2176), (32, 128, 2416)])
def test_document_000s_diagonal_holds_what_groups_a_token_apart_hold(groups: int, length: int, pages: int) -> None:
    """As counted on an H200 with 8 requests a group and 32 new tokens."""
    asked: dict[str, Any] = {"batch_size": 8 * groups, "sequence_length": length, "decode_length": 32, "dtype": "bfloat16"}
    zigzag, diagonal = (estimate("opt-1.3b", "h200", admission=order, group_size=8, **asked) for order in ("zigzag", "diagonal"))
    page = 16 * 2 * 24 * 2048 * 2
    assert diagonal.memory.kv == pages * page
    assert zigzag.memory.kv == 8 * groups * -(-(length + 31) // 16) * page
    assert zigzag.memory.activations > diagonal.memory.activations  # 8192 tokens of prompts a sweep, against those of one group


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 40), st.integers(1, 20))
def test_a_diagonals_cache_is_what_its_scheduler_comes_to_hold(groups: int, size: int, length: int, new: int) -> None:
    scheduler = Scheduler(PagePool(10_000, 16), Diagonal(size), max_batch=groups * size, sweep_tokens=10_000, prefix_caching=False)
    for number in range(groups * size):
        params = SamplingParams(max_new_tokens=new, ignore_eos=True)
        scheduler.add(Request(number, (1,) * length, params, number))
    while scheduler.has_work:
        sweep = scheduler.next()
        assert sweep is not None
        sampled = [share.sequence for share in sweep.shares]
        scheduler.take_all(sampled, [5] * len(sampled))
    held = Workload(batch=groups * size, length=length, generated=new, group=size, staggered=groups).held_tokens(16, 10_000)
    assert held == 16 * scheduler.pool.peak_in_use
