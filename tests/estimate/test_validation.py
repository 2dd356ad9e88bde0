"""Scores by regime: what counts, by which constants, and when a gate holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from inferometer.errors import UserError
from inferometer.estimate.crossfit import ALL_FITTED
from inferometer.estimate.measured import MeasuredRow
from inferometer.estimate.validation import BOARD, CONSTANT, OURS, PEAK, PUBLISHED, SCALED, score, validate

from .measured_rows import regime, row, split

ROWS = [row(id=str(b), batch=b, value=float(b)) for b in (1, 2, 4)]


def _off_by(**errors: float):  # type: ignore[no-untyped-def]
    """A predictor that is wrong by so much, by id."""
    return lambda measured, constants: measured.value * (1 + errors.get(f"r{measured.id}", 0.0))


def test_fitted_rows_are_never_counted() -> None:
    report = score(regime(split(("1",))), ROWS, _off_by(r1=9.0, r2=0.1), {})
    found = report.deviation()
    assert found is not None
    assert (found.rows, found.worst_id) == (2, "2")
    assert found.mean == pytest.approx(0.05)
    assert [each.held_out for each in report.scored] == [False, True, True]


def test_rows_shown_apart_are_never_counted() -> None:
    report = score(regime(split()), [*ROWS, row(id="apart", counted=False, value=1.0)], _off_by(), {})
    found = report.deviation()
    assert found is not None
    assert found.rows == 3
    assert [each.row.id for each in report.scored if not each.held_out] == ["apart"]


def test_every_row_is_predicted_by_the_constants_of_its_own_fold() -> None:
    rows = [row(id=m, model=m) for m in ("opt-1.3b", "opt-6.7b")]
    fits = {"model opt-1.3b": {"native float16": {"c": 1.0}}, "model opt-6.7b": {"native float16": {"c": 2.0}}}
    seen: list[tuple[str, Mapping[str, float]]] = []

    def predict(measured: MeasuredRow, constants: Mapping[str, float]) -> float:
        seen.append((measured.model, constants))
        return 1.0

    score(regime(split(leave_out=("model",))), rows, predict, fits)
    assert seen == [("opt-1.3b", {"c": 1.0}), ("opt-6.7b", {"c": 2.0})]


def test_named_rows_have_one_set_of_constants_a_group() -> None:
    seen: list[Mapping[str, float]] = []
    fits = {ALL_FITTED: {"native float16": {"c": 3.0}}}
    score(regime(split(("1",))), ROWS, lambda measured, constants: (seen.append(constants), 1.0)[1], fits)
    assert seen == [{"c": 3.0}] * 3


def test_of_two_ways_to_leave_out_the_worse_counts() -> None:
    rows = [row(id=f"{m}-{d}", model=m, device=d) for m in ("opt-1.3b", "opt-6.7b") for d in ("rtx-a5000", "rtx-a6000")]
    fits = {f"device {d}": {"native float16": {"c": 1.3}} for d in ("rtx-a5000", "rtx-a6000")}
    report = score(regime(split(leave_out=("model", "device"))), rows, lambda r, constants: r.value * constants.get("c", 1.1), fits)
    by_model, by_device, worse = report.deviation_of(OURS, "model"), report.deviation_of(OURS, "device"), report.deviation()
    assert by_model is not None
    assert by_device is not None
    assert (by_model.mean, by_device.mean) == (pytest.approx(0.1), pytest.approx(0.3))
    assert worse == by_device
    assert report.passes is False


def test_a_gate_holds_at_its_figure_and_is_missed_above() -> None:
    assert score(regime(split(), gate=0.1), ROWS, _off_by(r1=0.15, r2=0.15), {}).passes is True
    assert score(regime(split(), gate=0.1), ROWS, _off_by(r1=0.2, r2=0.2), {}).passes is False
    assert score(regime(split(), gate=None), ROWS, _off_by(r1=9), {}).passes is None


def test_the_worst_row_can_miss_a_gate_alone() -> None:
    assert score(regime(split(), worst_gate=0.18), ROWS, _off_by(r1=0.17), {}).passes is True
    assert score(regime(split(), worst_gate=0.18), ROWS, _off_by(r1=0.19), {}).passes is False


def test_a_held_out_row_without_a_prediction_misses_the_gate() -> None:
    def predict(measured: MeasuredRow, constants: Mapping[str, float]) -> float | None:
        if measured.id == "2":
            raise UserError("no such model")
        return None if measured.id == "4" else measured.value

    report = score(regime(split()), ROWS, predict, {})
    assert [each.missing for each in report.missing] == ["no such model", "time_ms in mode prefill is not modelled"]
    assert report.passes is False
    assert score(regime(split(("2",))), ROWS[:2], predict, {}).passes is True


def test_the_constant_efficiency_is_set_on_the_rows_that_the_split_allows() -> None:
    report = score(regime(split(("1",))), ROWS, _off_by(), {})
    first = report.scored[0].predictions
    assert first[CONSTANT] == pytest.approx(ROWS[0].value)
    factor = first[CONSTANT] / first[PEAK]
    assert all(each.predictions[CONSTANT] == pytest.approx(factor * each.predictions[PEAK]) for each in report.scored)
    left = score(regime(split(leave_out=("row",))), ROWS, _off_by(), {})
    for each in left.scored:
        others = [other for other in left.scored if other is not each]
        product = 1.0
        for other in others:
            product *= other.row.value / other.predictions[PEAK]
        assert each.predictions[CONSTANT] / each.predictions[PEAK] == pytest.approx(product**0.5)


def test_where_nothing_is_fitted_there_is_no_constant_efficiency() -> None:
    report = score(regime(split()), ROWS, _off_by(), {})
    assert report.deviation(CONSTANT) is None
    assert report.deviation(PEAK) is not None


def test_published_estimates_and_board_power_stand_beside_ours() -> None:
    times = score(regime(split()), [row(published_estimate=12.0)], _off_by(), {}).deviation(PUBLISHED)
    assert times is not None
    assert times.mean == pytest.approx(0.2)
    serve = {"mode": "serve", "new_tokens": 9, "quantity": "j_per_token", "device": "h100-sxm", "tok_s": 700.0}
    rows = [row(id="a", model="opt-1.3b", value=0.5, **serve), row(id="b", model="opt-6.7b", value=0.5, **serve)]
    energy = score(regime(split(leave_out=("model",)), quantity="j_per_token"), rows, _off_by(), {})
    board, scaled = energy.deviation(BOARD), energy.deviation(SCALED)
    assert board is not None
    assert scaled is not None
    assert (board.mean, scaled.mean) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))


def test_one_regime_can_be_asked_for() -> None:
    found = validate("003", predict=_off_by(), fits={})
    assert [report.regime.name for report in found] == ["003"]
    with pytest.raises(UserError, match="regime nothing is unknown"):
        validate("nothing", predict=_off_by(), fits={})


def test_rows_of_the_same_runs_are_predicted_by_that_regime_s_folds() -> None:
    """The time between tokens of a model comes from constants that its joules had no part in."""
    fits = {"mlenergy": {"model qwen3-8b": {"vllm bfloat16": {"step_s": 1.0}}}}
    seen: dict[str, Mapping[str, float]] = {}
    validate("mlenergy-itl", predict=lambda measured, constants: (seen.update({measured.model: constants}), 1.0)[1], fits=fits)
    assert seen["qwen3-8b"] == {"step_s": 1.0}
    assert seen["qwen3-14b"] == {}
