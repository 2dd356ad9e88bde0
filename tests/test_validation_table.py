"""The committed errors of the estimator: no regime has got worse, and the page is what the code and the rows give."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from inferometer.estimate.deviation import Deviation, load_deviations
from inferometer.estimate.measured import load_regimes
from inferometer.estimate.validation import validate

ROOT = Path(__file__).resolve().parent.parent
# Errors are kept to a hundredth of a per cent.
DUST = 1e-4


@cache
def _now() -> dict[str, Deviation | None]:
    return {report.regime.name: report.deviation() for report in validate()}


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


def test_the_page_and_the_files_are_not_stale() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "validation.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
