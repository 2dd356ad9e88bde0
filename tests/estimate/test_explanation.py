"""The worst row of a missed gate, op by op."""

from __future__ import annotations

import pytest

from inferometer.estimate.explanation import Sum, explain
from inferometer.estimate.validation import score

from .measured_rows import regime, row, split

ROWS = [row(id="good", value=10.0), row(id="bad", value=10.0)]
PARTS = [
    Sum("norm", 0.02, 0.01, "memory"),
    Sum("qkv", 3.0, 2.0, "tensor"),
    Sum("up", 5.0, 4.0, "tensor"),
    Sum("rotary", 0.03, 0.0, "launch"),
]


def _report(off: float, **changes: object):  # type: ignore[no-untyped-def]
    return score(regime(split(), **changes), ROWS, lambda r, constants: r.value * (1 + off * (r.id == "bad")), {})


def test_the_worst_row_of_a_missed_gate_is_taken_apart() -> None:
    (found,) = explain([_report(-0.5)], op_times=lambda r, constants: PARTS, fits={})
    assert (found.row.id, found.predicted) == ("bad", 5.0)
    assert [part.name for part in found.parts] == ["up", "qkv", "2 others"]
    assert found.parts[-1].ms == pytest.approx(0.05)
    assert found.device_ms == pytest.approx(8.05)


def test_gates_that_hold_or_do_not_exist_need_no_explanation() -> None:
    held, none, ours = _report(-0.1), _report(-0.5, gate=None), _report(-0.5, gates=False)
    assert explain([held, none, ours], op_times=lambda r, constants: PARTS, fits={}) == ()


def test_the_parts_are_of_the_constants_of_the_row_s_own_fold() -> None:
    rows = [row(id=m, model=m, value=10.0) for m in ("opt-1.3b", "opt-6.7b")]
    fits = {"a regime": {"model opt-6.7b": {"native float16": {"c": 2.0}}}}
    report = score(regime(split(leave_out=("model",))), rows, lambda r, constants: 10 * constants.get("c", 1.0), fits["a regime"])
    seen = []
    explain([report], op_times=lambda r, constants: (seen.append((r.id, constants)), PARTS)[1], fits=fits)
    assert seen == [("opt-6.7b", {"c": 2.0})]


def test_steps_of_one_run_are_put_together_where_the_same_binds() -> None:
    steps = [Sum("qkv", 3.0, 2.0, "tensor"), Sum("qkv", 5.0, 4.0, "memory"), Sum("qkv", 1.0, 0.5, "memory")]
    (found,) = explain([_report(-0.5)], op_times=lambda r, constants: steps, fits={})
    assert [(part.name, part.binds, part.ms) for part in found.parts] == [("qkv", "memory", 6.0), ("qkv", "tensor", 3.0)]
