"""Which way a sum over GPUs takes, and the file that remembers it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.parallel.sum_choice import (
    LIKE,
    SCHEMA_VERSION,
    SIZES,
    WAYS,
    Way,
    best,
    choice_path,
    load_choice,
    offered,
    save_choice,
    size_class,
    way_for,
)

ALL = dict.fromkeys(WAYS, True)
CHOICE: dict[int, Way] = {size: "mailbox" if size < 1 << 22 else "rows" for size in SIZES}


@given(st.integers(0, 1 << 40))
def test_what_lies_between_two_sizes_counts_as_the_larger(nbytes: int) -> None:
    found = size_class(nbytes)
    assert found in SIZES
    assert found >= nbytes or found == SIZES[-1]
    assert found == SIZES[0] or found // 4 < nbytes


@given(st.integers(0, 1 << 30), st.sets(st.sampled_from(WAYS), min_size=1), st.sampled_from([{}, CHOICE]))
def test_the_way_taken_is_one_that_is_able(nbytes: int, able: set[Way], choice: dict[int, Way]) -> None:
    assert way_for(nbytes, choice, {way: way in able for way in WAYS}) in able


def test_what_was_measured_decides_and_else_the_first_that_is_able() -> None:
    assert way_for(1 << 26, CHOICE, ALL) == "rows"
    assert way_for(1 << 13, CHOICE, ALL) == "mailbox"
    assert way_for(1 << 13, CHOICE, ALL | {"mailbox": False}) == "rows"
    assert way_for(1 << 26, {}, ALL) == "mailbox"
    with pytest.raises(RuntimeError, match="no way"):
        way_for(8, {}, dict.fromkeys(WAYS, False))


def test_the_fastest_is_chosen_for_each_size() -> None:
    assert best({8: {"mailbox": 2.0, "nccl": 1.0}, 16: {"rows": 1.0, "nccl": 1.0}, 32: {}}) == {8: "nccl", 16: "rows"}


def test_a_choice_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "sums.json"
    assert load_choice(path) == {}
    assert save_choice(path, CHOICE)
    assert load_choice(path) == CHOICE
    assert [file.name for file in path.parent.iterdir()] == ["sums.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"schema_version": SCHEMA_VERSION, "ways": []}),
        json.dumps({"schema_version": SCHEMA_VERSION, "ways": {"262144": "mailbox"}}),
        json.dumps({"schema_version": SCHEMA_VERSION, "ways": {"x": 1}}),
        json.dumps({"schema_version": 0, "ways": {str(size): "nccl" for size in SIZES}}),
        json.dumps({"schema_version": SCHEMA_VERSION, "ways": {str(size): "smoke" for size in SIZES}}),
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sums.json"
    path.write_text(text)
    assert load_choice(path) == {}


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not save_choice(tmp_path / "file" / "sums.json", CHOICE)


def test_other_cards_and_numbers_of_ranks_choose_for_themselves() -> None:
    assert len({choice_path("NVIDIA H200", 2), choice_path("NVIDIA H200", 4), choice_path("NVIDIA A100", 2)}) == 3


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_what_no_gpu_has_run_is_not_offered(ranks: int) -> None:
    assert set(offered(ranks)) == {"mailbox", "rows"} | ({"nccl"} if ranks > 2 else set())
    assert not set(offered(ranks)) & set(LIKE)
