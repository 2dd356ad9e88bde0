"""Sizes in words: never 0.00 of anything that is there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.model.byte_size import gib


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (1023, "1023 B"),
        (4096, "4.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (100 << 20, "100.0 MiB"),
        (103 << 20, "0.10 GiB"),
        (13_316_898_816, "12.40 GiB"),
        (5 << 40, "5,120.00 GiB"),
        (-(3 << 30), "-3.00 GiB"),
    ],
)
def test_a_size_has_the_unit_in_which_it_is_seen(size: int, said: str) -> None:
    assert gib(size) == said


def test_digits_are_those_of_whole_gib() -> None:
    assert [gib(size, digits=3) for size in (662_700_032, 4096)] == ["0.617 GiB", "4.0 KiB"]


@given(st.integers(1, 1 << 60))
def test_what_is_said_is_within_a_twentieth(size: int) -> None:
    number, unit = gib(size).replace(",", "").split(" ")
    assert re.fullmatch(r"\d+(\.\d+)?", number)
    assert float(number) * {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}[unit] == pytest.approx(size, rel=0.05 + 1e-9)
    assert float(number) > 0
