"""Constants are found from the rows that a split allows, and from no others."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate.crossfit import ALL_FITTED, fit, fits_toml, group, load_fits, parts, read_fits
from inferometer.estimate.measured import MeasuredRow, load_regimes, load_rows

from .measured_rows import refusal, regime, row, split


@dataclass(frozen=True)
class Ends:
    prior: float
    low: float
    high: float


RANGES = {"share": Ends(0.7, 0.3, 1.0), "start_ms": Ends(1.0, 0.1, 10.0)}


def _law(measured: MeasuredRow, constants: Mapping[str, float]) -> float:
    return measured.batch / constants["share"] + constants["start_ms"]


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.35, 0.95), start=st.floats(0.2, 8.0))
def test_the_constants_behind_the_rows_are_found(share: float, start: float) -> None:
    true = {"share": share, "start_ms": start}
    rows = [row(id=str(b), batch=b, value=_law(row(batch=b), true)) for b in (1, 2, 4, 16, 64, 256)]
    found = fit(rows, RANGES, _law)
    for each in rows:
        assert _law(each, found) == pytest.approx(each.value, rel=0.06)
    for name, ends in RANGES.items():
        assert ends.low * 0.999 <= found[name] <= ends.high * 1.001


def test_what_the_rows_do_not_tell_stays_at_its_prior() -> None:
    rows = [row(value=5.0)]
    found = fit(rows, {**RANGES, "idle": Ends(3.0, 1.0, 9.0)}, lambda measured, constants: 5.0)
    assert found == {"share": 0.7, "start_ms": 1.0, "idle": 3.0}


def test_no_rows_leave_the_priors() -> None:
    assert fit([], RANGES, _law) == {"share": 0.7, "start_ms": 1.0}


def test_a_row_that_is_not_modelled_is_passed_over() -> None:
    rows = [row(id="a", batch=10, value=21.0), row(id="b", batch=20, value=41.0), row(id="c", value=7.0)]
    found = fit(rows, RANGES, lambda measured, constants: None if measured.id == "c" else _law(measured, constants))
    assert _law(rows[0], found) == pytest.approx(21.0, rel=0.05)


def test_parts_hold_no_row_of_their_fold() -> None:
    rows = [row(id=f"{m}-{d}", model=m, device=d) for m in ("opt-1.3b", "opt-6.7b") for d in ("rtx-a5000", "rtx-a6000")]
    made = list(parts(regime(split(leave_out=("model", "device"))), rows))
    assert [part.fold for part in made] == ["model opt-1.3b", "model opt-6.7b", "device rtx-a5000", "device rtx-a6000"]
    for part in made:
        kind, name = part.fold.split()
        assert len(part.rows) == 2
        assert all(getattr(each, kind) != name for each in part.rows)


def test_parts_of_named_rows_are_apart_by_stack_and_type() -> None:
    rows = [row(id="a"), row(id="b", dtype="bfloat16"), row(id="c", stack="hf-eager"), row(id="d"), row(id="e", counted=False)]
    made = list(parts(regime(split(("a", "b"))), rows))
    assert [(part.fold, part.group, [each.id for each in part.rows]) for part in made] == [
        (ALL_FITTED, "native float16", ["a"]),
        (ALL_FITTED, "native bfloat16", ["b"]),
        (ALL_FITTED, "hf-eager float16", []),
    ]


def test_nothing_is_fitted_where_nothing_may_be() -> None:
    assert not list(parts(regime(split()), [row()]))


def test_the_frozen_constants_are_of_folds_that_exist() -> None:
    for name, folds in load_fits().items():
        wanted = {(part.fold, part.group) for part in parts(load_regimes()[name], load_rows(name))}
        assert {(fold, kind) for fold, groups in folds.items() for kind in groups} == wanted


def test_the_file_gives_back_what_was_written() -> None:
    fits = {"a regime": {"model opt-1.3b": {group(row()): {"share": 0.5, "start_ms": 2e-05}}}}
    assert read_fits(tomllib.loads(fits_toml(fits))) == fits


@settings(deadline=None)
@given(
    st.recursive(
        st.sampled_from([0, 1, -1.5, "x", True, None, float("inf")]),
        lambda inner: st.dictionaries(st.text(max_size=3), inner),
        max_leaves=9,
    )
)
def test_a_damaged_file_is_one_line(values: Any) -> None:
    said = refusal(lambda: read_fits({"a regime": values}))
    assert said is None or said.startswith("fits.toml: 'a regime'")
