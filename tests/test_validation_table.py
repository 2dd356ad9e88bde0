"""The committed errors of the estimator: no regime has got worse, and the page is what the code and the rows give."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from inferometer.estimate.deviation import Deviation, load_deviations
from inferometer.estimate.measured import load_regimes
from inferometer.estimate.validation import Report, validate

ROOT = Path(__file__).resolve().parent.parent
# Errors are kept to a hundredth of a per cent.
DUST = 1e-4


@cache
def _reports() -> tuple[Report, ...]:
    return validate()


@cache
def _now() -> dict[str, Deviation | None]:
    return {report.regime.name: report.deviation() for report in _reports()}


@pytest.mark.parametrize("name", list(load_regimes()))
def test_no_error_has_got_worse(name: str) -> None:
    before, now = load_deviations().get(name), _now()[name]
    if before is None:
        assert now is None, f"{name} has an error now: run python benchmarks/validation.py"
        return
    assert now is not None
    assert now.rows >= before.rows
    assert now.mean <= before.mean + DUST
    assert now.worst <= before.worst + DUST


def test_the_page_and_the_files_are_not_stale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_from_file_location("validation_script", ROOT / "benchmarks" / "validation.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = module_from_spec(spec)
    spec.loader.exec_module(script)
    # It predicts every row, which has been done here.
    monkeypatch.setattr(script, "validate", _reports)
    monkeypatch.setattr(sys, "argv", ["validation.py", "--check"])
    assert script.main() == 0, capsys.readouterr().err
