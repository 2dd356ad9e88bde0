"""The JSON files beside a checkpoint: an object, or one line that says what it is."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.text.json_file import read_json


def test_an_object_is_read_and_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert read_json(path) == {}
    path.write_text(json.dumps({"text": "😀 \\u"}))  # of which JSON makes a pair
    assert read_json(path) == {"text": "😀 \\u"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "holds a list where a JSON object is expected"),
        ('{"a": [{"\\ude00": 1}]}', "holds a lone surrogate, U+DE00, which is no text"),
        ('{"a": "x\\ud800"}', "holds a lone surrogate, U+D800, which is no text"),
    ],
)
def test_what_is_no_object_of_texts_is_told(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: {why}")
    assert str(error.value).endswith("; fetch the model again")
    assert "\n" not in str(error.value)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")

    def closed(self: Path, **how: Any) -> str:  # whoever runs the tests may read everything, perhaps
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_text", closed)
    with pytest.raises(UserError) as error:
        read_json(path)
    assert str(error.value) == f"{path}: Permission denied; change who may read it, or name another model"
