"""Runs of groups in the three orders, with weights resident or streamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.estimate import Estimate, estimate
from inferometer.estimate.groups import sweeps


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
    assert away.largest_batch > held.largest_batch


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
