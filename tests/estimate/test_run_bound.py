"""The bound of a whole run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.cli.estimate import text
from inferometer.estimate import estimate
from inferometer.estimate.bound import Bound, Resource
from inferometer.estimate.run_bound import in_any_order, one_after_another


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    """Of a step of three operations, each bound by one resource and done by the others meanwhile."""
    spent: dict[Resource, float] = {"memory": 0.0, "compute": 0.0, "link": 0.0}
    alone: dict[Resource, float] = dict(spent)
    for binds in spent:
        spent[binds] = draw(st.floats(0.01, 1e3))
        for other in alone:
            alone[other] += spent[binds] if other == binds else spent[binds] * draw(st.floats(0, 1))
    total = sum(spent.values())
    shares: dict[Resource, float] = {name: ms / total for name, ms in spent.items()}
    return Bound(
        ms=total, compute_ms=alone["compute"], memory_ms=alone["memory"], link_ms=alone["link"], shares=shares, kinds={}, basis="datasheet"
    )


@given(prefill=bounds(), decode=bounds(), steps=st.integers(1, 100))
def test_sharing_sweeps_never_asks_for_more(prefill: Bound, decode: Bound, steps: int) -> None:
    after, any_order = one_after_another(prefill, decode, steps), in_any_order(prefill, decode, steps)
    assert after.ms == pytest.approx(prefill.ms + steps * decode.ms)
    assert any_order.ms <= after.ms * (1 + 1e-9)
    assert any_order.ms >= max(prefill.compute_ms, prefill.memory_ms, prefill.link_ms) * (1 - 1e-9)


def test_what_binds_is_what_takes_the_most() -> None:
    def of(memory: float, compute: float, link: float = 0.0) -> Bound:
        total = memory + compute + link
        shares: dict[Resource, float] = {"memory": memory / total, "compute": compute / total, "link": link / total}
        return Bound(ms=total, compute_ms=compute, memory_ms=memory, link_ms=link, shares=shares, kinds={}, basis="datasheet")

    prefill, decode = of(1.0, 9.0), of(2.0, 1.0)
    assert (one_after_another(prefill, None, 0).binds, one_after_another(prefill, decode, 3).binds) == ("compute", "compute")
    assert one_after_another(prefill, decode, 20).binds == "memory"
    assert (in_any_order(prefill, decode, 3).ms, in_any_order(prefill, decode, 3).binds) == (12.0, "compute")
    assert in_any_order(prefill, of(1.0, 1.0, 50.0), 3).binds == "link"


@pytest.mark.parametrize("stack", ["native", "flexgen"])
@pytest.mark.parametrize("admission", [None, "zigzag", "diagonal", "row"])
@pytest.mark.parametrize("offload", [None, "weights", "weights:0.5,pages"])
@pytest.mark.parametrize("device", ["t4", "h200", "cpu"])
def test_no_run_is_expected_below_its_bound(stack: str, admission: str | None, offload: str | None, device: str) -> None:
    if device == "cpu" and offload is not None:
        offload = None
    groups = {} if admission is None else {"admission": admission, "group_size": 4}
    asked = {"batch_size": 16, "sequence_length": 128, "decode_length": 8, "calibration": None, "dtype": "float32", **groups}
    found = estimate("opt-1.3b", device, stack=stack, offload=offload, **asked)  # type: ignore[arg-type]
    assert found.least is not None
    assert found.total_ms is not None
    low, high = found.interval["total_ms"]
    assert min(found.least.ms, found.total_ms) <= low <= found.total_ms <= high
    assert found.to_dict()["bound"]["total_ms"] == found.least.ms
    if offload is not None:
        assert found.least.binds == "link"


def test_the_text_puts_the_run_beside_its_bound_and_no_interval_below_one() -> None:
    # An assumed processor may be three times as fast as expected, but not faster than its memory.
    found = estimate("opt-125m", "cpu", batch_size=2, sequence_length=64, decode_length=8, mixed_tokens=16, calibration=None)
    assert found.least is not None
    assert found.interval["total_ms"][0] == found.least.ms
    assert found.mixed is not None
    assert found.interval["mixed_step_ms"][0] == found.mixed.bound.ms
    assert re.search(r"(?m)^in all: .* ms \(.*\), bound [\d.,]+ ms \((memory|compute)\)$", text(found))


def test_fewer_in_flight_read_the_weights_more_often() -> None:
    asked = {"batch_size": 64, "group_size": 4, "sequence_length": 32, "decode_length": 8, "calibration": None}

    def least(order: str, **more: object) -> float:
        found = estimate("opt-6.7b", "a100-sxm-80gb", admission=order, **asked, **more).least  # type: ignore[arg-type]
        assert found is not None
        return found.ms

    assert least("zigzag") == least("diagonal") < least("diagonal", num_groups=8) < least("diagonal", num_groups=2) < least("row")
    assert least("diagonal", num_groups=100) == least("diagonal")
    assert least("row") == pytest.approx(least("diagonal", num_groups=1))
    # 13.3 GB at 2.039 TB/s, in eight sweeps of all, and of each group.
    assert least("zigzag") > 8 * 13.3 / 2.039
    assert least("row") > 16 * 8 * 12.9 / 2.039


def test_an_encoder_whose_weights_stream_waits_for_the_link() -> None:
    held, found = (
        estimate("bert-base", "l4", batch_size=1, sequence_length=512, offload=offload, calibration=None)
        for offload in (None, "weights:0.5")
    )
    assert found.bound["forward_ms"] > 1.2 * held.bound["forward_ms"]
