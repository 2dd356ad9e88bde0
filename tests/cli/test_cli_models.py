from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.cli import models
from inferometer.cli.main import main


def test_the_list_shows_what_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("smollm2-135m" in line for line in lines)
    row = next(line.split() for line in lines if line.strip().startswith("opt-1.3b "))
    assert row == ["opt-1.3b", "opt", "1,315,758,080", "24", "2,048", "2,048", "facebook/opt-1.3b"]
    assert all(line == line.rstrip() for line in lines)
    marked = next(line.split() for line in lines if line.strip().startswith("mixtral-8x7b "))
    assert marked[1:3] == ["mixtral", "*"]
    assert lines[-1].startswith("* for `inferometer estimate` alone")


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {model["name"] for model in document["embedded"]} == {"smollm2-135m", "all-minilm-l6-v2"}
    bloom = next(preset for preset in document["presets"] if preset["name"] == "bloom-560m")
    assert bloom["positions"] is None
    assert {preset["name"]: preset["runs"] for preset in document["presets"]}.items() >= {"bloom-560m": True, "mixtral-8x7b": False}.items()
    assert bloom["parameters"] == 559_214_592


def test_fetch_prints_where_the_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "fetch", lambda name: tmp_path / name)
    assert main(["models", "fetch", "smollm2-135m"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'smollm2-135m'}\n"
    assert main(["models", "fetch", "smollm2-135m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "smollm2-135m")
