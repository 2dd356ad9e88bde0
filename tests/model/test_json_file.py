"""What a reader of a file that is replaced can see."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from inferometer.model.json_file import replace_json


def test_a_document_is_written_whole_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.json"
    replace_json(path, {"x": [1, 2]})
    assert json.loads(path.read_text("utf-8")) == {"x": [1, 2]}
    assert os.listdir(path.parent) == ["c.json"]


@pytest.mark.parametrize("what", ["no number", "disk full"])
def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = tmp_path / "c.json"
    replace_json(path, 1)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    if what == "disk full":
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError if what == "disk full" else TypeError):
        replace_json(path, {"x": 2 if what == "disk full" else object()})
    assert path.read_text("utf-8") == "1\n"
    assert os.listdir(tmp_path) == ["c.json"]
