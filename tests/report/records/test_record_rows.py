"""Records as comma-separated values."""

from __future__ import annotations

import csv
import io

from report_records import made

from inferometer.bench.records.record import Bound
from inferometer.report.records.record_rows import records_csv

LIMITS = Bound(prefill_ms=9.0, decode_token_ms=1.0, basis="calibrated")


def test_a_record_that_beat_its_bound_has_the_remark_of_the_other_formats() -> None:
    slow = made([10.0, 10.0], [2.0, 2.0], bound=LIMITS)
    fast = made([10.0, 10.0], [0.9, 0.9], batch_size=2, bound=LIMITS)
    rows = list(csv.DictReader(io.StringIO(records_csv([slow, fast]))))
    assert list(rows[0])[-1] == "remark"
    assert rows[0]["remark"] == ""
    assert rows[1]["remark"].startswith("Above 100 % of bound: the device is faster than the limits that the bound rests on")
    assert "inferometer devices --calibrate" in rows[1]["remark"]


def test_the_columns_do_not_depend_on_whether_there_is_a_remark() -> None:
    assert records_csv([made([10.0], [2.0], bound=LIMITS)]).partition("\n")[0].endswith(",remark")
