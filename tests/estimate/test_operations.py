"""Single measured operations: read without silence, and nearer to the expected time than to the roofline."""

from __future__ import annotations

import pickle
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate.measured.operation import Operation, load_operations, read_operations
from inferometer.estimate.operations import series, timed

from .measured_rows import refusal


def _operation(kind: Any, shape: tuple[int, ...], **changes: Any) -> Operation:
    fields: dict[str, Any] = {"set": "a", "device": "a100-sxm-80gb", "gpus": 1, "link": None, "captured": True, "dtype": "float16"}
    return Operation(kind=kind, shape=shape, us=1.0, source="a source", **{**fields, **changes})


def _document() -> dict[str, Any]:
    """A copy of one's own: to parse takes longer than all that is tested of it."""
    found: dict[str, Any] = pickle.loads(_parsed())
    return found


@cache
def _parsed() -> bytes:
    return pickle.dumps(tomllib.loads(files("inferometer.estimate.measured").joinpath("operations.toml").read_text("utf-8")))


@pytest.mark.parametrize("each", series(), ids=lambda each: each.name)
def test_expected_times_are_nearer_than_the_roofline(each: Any) -> None:
    assert each.expected.rows == each.bound.rows == len(each.timed)
    assert each.expected.mean < each.bound.mean


def test_bounds_by_hand() -> None:
    assert timed(_operation("product", (4096, 4096, 4096))).bound_us == pytest.approx(2 * 4096**3 / 312e12 * 1e6)
    assert timed(_operation("product", (1, 4096, 4096))).bound_us == pytest.approx(4096 * 4096 * 2 / 2039e9 * 1e6, rel=1e-3)
    assert timed(_operation("copy", (2_039_000,))).bound_us == pytest.approx(1.0)
    reduced = _operation("all_reduce", (300_000_000,), gpus=4, link="nvlink")
    assert timed(reduced).bound_us == pytest.approx(2 * 3 / 4 * 300e6 / 300e9 * 1e6)
    attention = _operation("decode_attention", (8, 1024, 32, 8, 128))
    assert timed(attention).bound_us == pytest.approx(8 * 1024 * 2 * 8 * 128 * 2 / 2039e9 * 1e6, rel=1e-2)


def test_prompts_attend_half_of_the_square() -> None:
    tokens = 8192
    attention = _operation("prefill_attention", (1, tokens, 32, 32, 128))
    assert timed(attention).bound_us == pytest.approx(2 * 2 * 32 * 128 * tokens * (tokens + 1) / 2 / 312e12 * 1e6, rel=0.05)


def test_bytes_of_the_copies_are_read_and_written_ones() -> None:
    """A card never moves more than its memory carries."""
    for each in load_operations():
        if each.kind == "copy":
            assert each.shape[0] / each.us * 1e6 < 768e9


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_one_line(data: st.DataObject) -> None:
    document = _document()
    table = data.draw(st.sampled_from(document["table"]))
    junk = data.draw(st.sampled_from([None, "", "x", 0, -1, 1.5, True, [], [[]], {}, float("nan")]))
    if data.draw(st.booleans()):
        table[data.draw(st.sampled_from([*table, "extra"]))] = junk
    else:
        row = data.draw(st.sampled_from(table["rows"]))
        row[data.draw(st.integers(0, len(row) - 1))] = junk
    said = refusal(lambda: list(read_operations(document)))
    assert said is None or said.startswith("operations.toml")
