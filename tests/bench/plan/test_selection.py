"""What --only names of a study's cases."""

from __future__ import annotations

from typing import Any

import pytest
from fake_worker import place
from studies import STUDY

from inferometer.bench.plan.plan import plan, select
from inferometer.bench.plan.question import questions
from inferometer.bench.study.file import read_study
from inferometer.errors import UserError


def only(*words: str) -> list[Any]:
    found = [planned.question for planned in plan(read_study(STUDY, "mine", "mine.toml").study(), lambda device: place("cpu"), words)]
    return [(question.cell.column, question.case.batch_size) for question in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [("one", 1), ("other", 1), ("one", 2), ("other", 2), ("one", 4), ("other", 4)]),
        (("one",), [("one", 1), ("one", 2), ("one", 4)]),
        (("one", "other", "batch_size=2"), [("one", 2), ("other", 2)]),
        (("sweep", "column=other", "batch_size=1,4"), [("other", 1), ("other", 4)]),
        (("batch_size=1", "batch_size=4", "backend=native"), [("one", 1), ("one", 4)]),
        (("part=sweep", "dtype=float32", "one", "batch_size=1"), [("one", 1)]),
    ],
)
def test_only_what_is_named(words: tuple[str, ...], expected: list[tuple[str, int]]) -> None:
    assert only(*words) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("on", "--only on is no part and no column; did you mean one?"),
        ("batch=1", "--only batch=1: no case has a batch; did you mean batch_size?"),
        ("batch_size=3", "--only batch_size=3: no case has batch_size 3; known are 1, 2, 4"),
        ("batch_size=1,3", "no case has batch_size 3"),
        ("column=", "no case has column ;"),
    ],
)
def test_only_what_is_not_there(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        only(word)
    assert message in str(caught.value)


def test_a_name_with_a_comma_in_it() -> None:
    text = STUDY.replace('"one"', '"one, two"')
    found = questions(read_study(text, "mine", "mine.toml").study(), lambda device: place("cpu"))
    assert {question.cell.column for question in select(found, ["column=one, two"])} == {"one, two"}
