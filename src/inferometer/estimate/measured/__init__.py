"""Measured rows: what was published about real runs, with its source and its known defects, and the frozen splits of it."""

from __future__ import annotations

from inferometer.estimate.measured.chart import Chart, load_chart, load_charts
from inferometer.estimate.measured.load import load_calibration, load_regimes, load_rows
from inferometer.estimate.measured.regime import Fold, Regime, Split
from inferometer.estimate.measured.row import MeasuredRow

__all__ = ["Chart", "Fold", "MeasuredRow", "Regime", "Split", "load_calibration", "load_chart", "load_charts", "load_regimes", "load_rows"]
