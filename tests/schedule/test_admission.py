"""Which admission is meant, and what makes no sense."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.schedule.admission import ADMISSIONS, admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Diagonal, Row, Zigzag


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("continuous",), Continuous()),
        (("zigzag",), Zigzag(8, None)),
        (("zigzag", 4, 3), Zigzag(4, 3)),
        (("diagonal", 4), Diagonal(4, None)),
        (("diagonal", None, 5), Diagonal(8, 5)),
        (("row", 6), Row(6)),
        (("row", 6, 1), Row(6)),
    ],
)
def test_what_is_meant(arguments: tuple[Any, ...], expected: object) -> None:
    assert admission(*arguments) == expected
    assert admission(*arguments).name == arguments[0]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("fifo",), ("--admission", "'fifo'", *ADMISSIONS)),
        ((None,), ("--admission", "None")),
        (([],), ("--admission", "[]")),
        (("continuous", 8), ("--group-size", "--admission continuous")),
        (("continuous", None, 8), ("--num-groups", "--admission continuous")),
        (("zigzag", 0), ("--group-size", "at least 1", "0")),
        (("diagonal", 8, -1), ("--num-groups", "at least 1", "-1")),
        (("diagonal", 2.5), ("--group-size", "whole number", "2.5")),
        (("row", True), ("--group-size", "True")),
        (("row", 8, 2), ("--num-groups", "one group at a time", "2")),
    ],
)
def test_what_makes_no_sense_is_told(arguments: tuple[Any, ...], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refusal:
        admission(*arguments)
    message = str(refusal.value)
    assert "\n" not in message
    assert all(fact in message for fact in facts), message
