"""How many rows of logits stand in memory at a time."""

from __future__ import annotations

import pytest

from inferometer.model.scored_rows import scored_rows


@pytest.mark.parametrize(("vocabulary", "rows"), [(1, 1024), (50272, 1024), (65536, 1024), (128256, 512), (250880, 256), (1 << 30, 256)])
def test_rows_that_are_scored_at_a_time(vocabulary: int, rows: int) -> None:
    assert scored_rows(vocabulary) == rows
