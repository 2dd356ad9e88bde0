"""What `--offload` and `--percent` mean, and what of them is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.model.offload import Offload, read_offload


@pytest.mark.parametrize(
    ("text", "weights", "pages", "name"),
    [
        ("weights", 1.0, 0.0, "weights"),
        ("weights:0.4", 0.4, 0.0, "weights:0.4"),
        ("weights:1", 1.0, 0.0, "weights"),
        ("weights:0", 0.0, 0.0, None),
        ("pages", 0.0, 1.0, "pages"),
        ("weights,pages", 1.0, 1.0, "weights,pages"),
        ("pages, weights:0.5", 0.5, 1.0, "weights:0.5,pages"),
    ],
)
def test_offload_is_read(text: str, weights: float, pages: float, name: str | None) -> None:
    found = read_offload(text)
    assert (found.weights, found.disk, found.pages, found.name) == (weights, None, pages, name)


@pytest.mark.parametrize(
    "text",
    ["", "all", "weights:", "weights:x", "weights:-0.1", "weights:1.1", "weights:nan", "weights:inf", "pages:0.5", "weights,weights", ","],
)
def test_what_means_nothing_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^--offload [^\n]*$"):
        read_offload(text)


@given(st.text(max_size=20))
def test_no_text_is_more_than_read_or_refused(text: str) -> None:
    try:
        found = read_offload(text)
    except UserError:
        return
    assert 0 <= found.weights <= 1


def test_flexgens_six_numbers() -> None:
    assert read_offload(None, (20, 50, 100, 0, 100, 0)) == Offload(weights=0.8, disk=0.3, pages=0.0)
    assert read_offload(None, "0 100 0 100 0 100") == Offload(weights=1.0, disk=0.0, pages=1.0)
    assert read_offload(None, "100,0,100,0,100,0").name is None


@pytest.mark.parametrize(
    "percent",
    [
        (100, 0, 100, 0, 100),
        (60, 50, 100, 0, 100, 0),
        (-1, 50, 100, 0, 100, 0),
        (0, 100, 50, 0, 100, 0),
        (0, 100, 100, 0, 50, 50),
        (0, 100, 100, 0, 60, 60),
        "0 100 100 0 100 x",
        "0 100 100 0 100 0.5",
        (0.5, 99.5, 100, 0, 100, 0),
        (True, 0, 100, 0, 100, 0),
        "",
    ],
)
def test_six_numbers_that_make_no_sense_are_refused(percent: object) -> None:
    with pytest.raises(UserError, match=r"^--percent [^\n]*$"):
        read_offload(None, percent)  # type: ignore[arg-type]


def test_both_at_once_are_refused() -> None:
    with pytest.raises(UserError, match="leave out --offload"):
        read_offload("weights", (0, 100, 100, 0, 100, 0))


def test_layers_are_placed_by_what_the_host_has_room_for() -> None:
    sizes = [100] * 10
    assert Offload(weights=0.4).place(sizes).host_bytes == 400
    spilled = Offload(weights=1.0).place(sizes, 350, disk=True)
    assert (spilled.host_bytes, spilled.disk_bytes) == (350, 650)
    assert Offload(weights=1.0).place(sizes, 1000, disk=True).disk_bytes == 0
    split = Offload(weights=0.8, disk=0.3).place(sizes, 1000, disk=True)
    assert (split.resident_bytes, split.host_bytes, split.disk_bytes) == (200, 500, 300)


def test_what_has_no_room_names_the_remedy() -> None:
    with pytest.raises(UserError, match=r"--disk DIR"):
        Offload(weights=1.0).place([2**30] * 4, 2**30)
    with pytest.raises(UserError, match=r"--percent puts .* raise --host-memory"):
        Offload(weights=1.0, disk=0.5).place([2**30] * 4, 2**30, disk=True)
    with pytest.raises(UserError, match=r"--disk DIR"):
        Offload(weights=1.0, disk=0.5).place([2**30] * 4)
