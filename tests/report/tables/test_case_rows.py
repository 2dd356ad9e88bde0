"""A case as a row of what all formats show."""

from __future__ import annotations

import pytest
from report_records import made

from inferometer.report.records.columns import Columns
from inferometer.report.tables.case_rows import CASE_HEADER, case_cells


@pytest.mark.parametrize(("token", "spread"), [([10.0, 11.0, 12.5], "22.7 %"), ([10.0, 10.0], "0.0 %"), ([10.0], "-")])
def test_one_run_has_no_spread(token: list[float], spread: str) -> None:
    """That nothing was repeated is no sign of steadiness."""
    record = made([5.0] * len(token), token)
    cells = dict(zip(CASE_HEADER, case_cells(record, Columns.of([record])), strict=True))
    assert cells["Spread"] == spread
