"""What is made beside its place, by processes that end well, that are killed and that are at work at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferometer.model.json_file import replace_json
from inferometer.model.scratch import is_being_made, remove_abandoned, scratch_beside
from killed_writers import LEFT, leave, writing


def test_what_a_live_process_makes_stays_and_what_a_killed_one_made_goes(tmp_path: Path) -> None:
    said: list[str] = []
    target = tmp_path / "out"
    with writing(target) as made:
        other = leave(target)
        remove_abandoned(target, said.append)
        assert said == [f"removed {LEFT} that a run which was killed had left beside {target}"]
        assert (made / "a" / "b").stat().st_size == 5000
        assert not other.parent.exists()
    with scratch_beside(target):
        assert not made.parent.exists()
    assert os.listdir(tmp_path) == []
    remove_abandoned(target, said.append)
    assert len(said) == 1


def test_what_was_moved_away_is_kept_and_the_rest_goes_whatever_is_raised(tmp_path: Path) -> None:
    target = tmp_path / "above" / "out"
    with scratch_beside(target) as made:
        (made / "out").write_text("whole")
        (made / "aside").write_text("")
        (made / "out").replace(target)

    def broken() -> None:
        with scratch_beside(target) as made:
            (made / "out").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert os.listdir(target.parent) == ["out"]
    assert target.read_text() == "whole"


@pytest.mark.parametrize(
    "name", [".out.abcd1234", ".out.x.abcd1234.part", ".out.ABCD1234.part", ".outer.abcd1234.part", "out.abcd1234.part"]
)
def test_what_is_not_of_this_target_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "made").mkdir(parents=True)
    (tmp_path / name / "lock").write_text("")
    remove_abandoned(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / name)) == ["lock", "made"]


def test_a_link_and_a_folder_of_no_lock_are_not_followed(tmp_path: Path) -> None:
    """Whoever is killed before it has its lock has put nothing there."""
    mine = tmp_path / "mine"
    (mine / "made").mkdir(parents=True)
    (mine / "lock").write_text("")
    (tmp_path / ".out.abcd1234.part").symlink_to(mine)
    (tmp_path / ".out.abcd1235.part" / "made").mkdir(parents=True)
    (tmp_path / ".out.abcd1236.part").mkdir()
    remove_abandoned(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.abcd1234.part", ".out.abcd1235.part", "mine"]
    assert sorted(os.listdir(mine)) == ["lock", "made"]


def test_where_are_no_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    left = leave(tmp_path / "out")
    monkeypatch.setattr(fcntl, "flock", none)
    with scratch_beside(tmp_path / "out") as made:
        assert list(made.iterdir()) == []
    assert (left / "a" / "b").is_file()


def test_those_that_come_and_go_do_not_take_each_others(tmp_path: Path) -> None:
    """Between making a folder and locking it, another may take it for an abandoned one."""

    def often(number: int) -> None:
        for turn in range(100):
            with scratch_beside(tmp_path / "out") as made:
                (made / "x").write_text(f"{number} {turn}")
                remove_abandoned(tmp_path / "out")
                assert (made / "x").read_text() == f"{number} {turn}"
                os.replace(made / "x", tmp_path / "out")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(often, range(8))) == [None] * 8
    assert os.listdir(tmp_path) == ["out"]


def test_a_document_takes_away_what_a_killed_process_left_of_it(tmp_path: Path) -> None:
    leave(tmp_path / "c.json")
    replace_json(tmp_path / "c.json", 1)
    assert os.listdir(tmp_path) == ["c.json"]


def test_whether_a_target_is_being_made_is_told_by_whoever_lives(tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert not is_being_made(tmp_path / "nowhere" / "out")
    leave(target)
    assert not is_being_made(target)
    with writing(target):
        assert is_being_made(target)
        assert not is_being_made(tmp_path / "other")
    with scratch_beside(target):
        assert is_being_made(target)
    assert not is_being_made(target)


def test_where_there_are_no_locks_nothing_is_known_to_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(lock: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with scratch_beside(tmp_path / "out"):
        assert not is_being_made(tmp_path / "out")
