"""Values as messages quote them: whatever a value is, a message stays one short line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import shown, shown_path


def test_a_short_value_is_quoted_whole() -> None:
    assert shown("two  spaces") == "'two  spaces'"
    assert shown("two\nlines") == r"'two\nlines'"
    assert shown([True, None]) == "[True, None]"
    assert shown([True, None], json.dumps) == "[true, null]"
    assert shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert shown("x" * 78) == f"'{'x' * 78}'"


@pytest.mark.parametrize("value", ["x" * 79, list(range(10_000)), b"\n" * 1000, np.zeros((50, 50)), {"a": {"b": "c" * 100}}])
def test_a_long_value_is_cut_and_says_so(value: object) -> None:
    found = shown(value)
    assert len(found) == 80
    assert found.endswith("...")
    assert "\n" not in found


def test_a_path_is_whole_as_its_end_tells_most() -> None:
    path = f"/a{'/folder' * 100}/with a\nbreak"
    assert shown_path(Path(path)) == repr(path)
    assert len(shown_path("x" * 10**6)) == 4096


def test_a_value_that_python_cannot_write_is_told_by_its_type() -> None:
    assert shown(10**5000) == "a value of type int too large to be shown"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert shown(nested) == "a value of type list too large to be shown"
