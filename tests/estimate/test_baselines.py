"""The simpler rules, by hand on small rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate.baselines import GIB, board_power, peak_roofline_ms, scale, weights_and_cache_gib
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.presets import preset

from .measured_rows import row

# opt-1.3b: 24 layers of width 2048, 50272 tokens, tied head; A100 80GB: 2039 GB/s, 312 TFLOP/s in float16.
LAYERS, HIDDEN, VOCABULARY = 24, 2048, 50272
BANDWIDTH, RATE = 2039e9, 312e12


def test_a_decode_step_reads_the_weights_and_the_cache() -> None:
    known = preset("opt-1.3b")
    assert known is not None
    weights = resident_weight_bytes(known.spec(), Formats())
    context = 127 + 3
    cache = 2 * LAYERS * HIDDEN * 2 * (context + 1)  # the step's own key and value are written
    least = peak_roofline_ms(row(mode="decode", prompt_tokens=127, new_tokens=7))
    # Of the table of positions one row is read; logits are written.
    unread = (2050 - 1) * HIDDEN * 2
    assert least == pytest.approx((weights + cache - unread + VOCABULARY * 2) / BANDWIDTH * 1e3, rel=1e-3)


def test_a_large_prefill_is_its_products() -> None:
    products = 2 * 12 * HIDDEN**2 * LAYERS * 16 * 1024
    attention = 2 * 2 * HIDDEN * LAYERS * 16 * 1024 * 1025 / 2
    least = peak_roofline_ms(row(batch=16, prompt_tokens=1024))
    assert least == pytest.approx((products + attention) / RATE * 1e3, rel=0.02)


def test_a_run_is_its_prefill_and_its_later_steps() -> None:
    whole = peak_roofline_ms(row(mode="generate", new_tokens=5))
    prefill = peak_roofline_ms(row())
    step = peak_roofline_ms(row(mode="decode", new_tokens=5))
    assert prefill is not None
    assert step is not None
    assert whole == pytest.approx(prefill + 4 * step)


@pytest.mark.parametrize("order", ["zigzag", "diagonal"])
def test_groups_run_one_after_another(order: str) -> None:
    groups = peak_roofline_ms(row(mode="groups", admission=order, group_size=8, groups=3, batch=24, new_tokens=5))
    one = peak_roofline_ms(row(mode="generate", batch=8, new_tokens=5))
    assert one is not None
    assert groups == pytest.approx(3 * one)


def test_cut_feed_forward_blocks_leave_the_rest_whole_and_add_an_all_reduce() -> None:
    alone = peak_roofline_ms(row(mode="forward", device="rtx-a5000", batch=16, prompt_tokens=1024))
    cut = peak_roofline_ms(
        row(mode="forward", device="rtx-a5000", batch=16, prompt_tokens=1024, gpus=8, parallel="mlp-tensor", link="pcie4")
    )
    tokens = 16 * 1024
    saved = 7 / 8 * 2 * 8 * HIDDEN**2 * tokens * LAYERS / 111.1e12
    sent = 2 * 7 / 8 * tokens * HIDDEN * 2 * LAYERS / 31.5e9
    assert alone is not None
    assert cut == pytest.approx(alone - (saved - sent) * 1e3, rel=0.02)


def test_a_shape_whose_heads_do_not_divide_is_cut_all_the_same() -> None:
    assert peak_roofline_ms(row(mode="forward", model="clm-60m", device="rtx-a5000", gpus=8, parallel="mlp-tensor", link="pcie4"))


def test_layers_over_devices_take_as_long_as_on_one() -> None:
    assert peak_roofline_ms(row(gpus=8, parallel="layers", link="nvlink")) == peak_roofline_ms(row())


def test_board_power_is_the_limit_over_the_rate() -> None:
    energy = row(mode="serve", new_tokens=9, quantity="j_per_token", tok_s=1000.0, device="h100-sxm", gpus=2, parallel="tensor")
    assert board_power(energy) == pytest.approx(2 * 700 / 1000)
    assert board_power(row(mode="serve", new_tokens=9, quantity="power_w", device="h100-sxm")) == 700
    assert board_power(row(mode="serve", new_tokens=9, quantity="j_per_token", device="h100-sxm")) is None
    assert board_power(row()) is None


def test_weights_and_cache_are_bytes_of_one_device() -> None:
    known = preset("opt-1.3b")
    assert known is not None
    weights = resident_weight_bytes(known.spec(), Formats())
    held = row(mode="generate", quantity="peak_gib", batch=4, prompt_tokens=100, new_tokens=28)
    assert weights_and_cache_gib(held) == pytest.approx((weights + 4 * 128 * 2 * LAYERS * HIDDEN * 2) / GIB)
    assert weights_and_cache_gib(row(mode="forward", quantity="peak_gib")) == pytest.approx(weights / GIB)
    assert weights_and_cache_gib(row()) is None


def test_rules_say_nothing_of_other_quantities() -> None:
    assert peak_roofline_ms(row(quantity="peak_gib")) is None
    assert peak_roofline_ms(row(mode="serve", new_tokens=3)) is None


def test_the_factor_by_hand() -> None:
    assert scale([2.0, 8.0], [1.0, 1.0]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="at least one"):
        scale([], [])


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1))
def test_a_factored_rule_has_no_mean_error_left_in_its_logarithm(pairs: list[tuple[float, float]]) -> None:
    factor = scale([m for m, _ in pairs], [p for _, p in pairs])
    assert sum(math.log(factor * p / m) for m, p in pairs) == pytest.approx(0, abs=1e-6 * len(pairs))
