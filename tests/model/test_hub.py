"""Models of the Hub: found in its cache, downloaded in part, and what is said where they are not; no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from described_folders import TINY, folder, refusal

from inferometer.errors import ModelError
from inferometer.model import hub
from inferometer.model.description import describe, with_weights

pytestmark = pytest.mark.usefixtures("nowhere")


def cached(tmp_path: Path, hub_id: str, *files: str, config: Any = TINY) -> Path:
    repository = tmp_path / "hf" / "hub" / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    path = folder(repository / "snapshots" / "abc123", config)
    for name in files:
        (path / name).write_bytes(b"")
    return path


def test_a_model_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    path = cached(tmp_path, "someone/tiny", "model.safetensors")
    found = describe("someone/tiny")
    assert (found.name, found.path, found.source, found.hub_id) == ("someone/tiny", path, "folder", "someone/tiny")


def test_a_revision_is_a_branch_a_tag_or_a_commit(tmp_path: Path) -> None:
    cached(tmp_path, "someone/tiny", "model.safetensors")
    repository = tmp_path / "hf" / "hub" / "models--someone--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    other = folder(repository / "snapshots" / commit, {**TINY, "n_embd": 48})
    (other / "model.safetensors").write_bytes(b"")
    for name in ("v2.0", "refs/pr/1"):
        (repository / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
    for revision in ("v2.0", "refs/pr/1", commit):
        found = describe("someone/tiny", revision=revision)
        assert (found.path, found.spec.hidden) == (other, 48)
    assert describe("someone/tiny", revision="main").spec.hidden == describe("someone/tiny").spec.hidden == 24
    with pytest.raises(ModelError, match="someone/tiny at revision v3 is not in the Hugging Face cache"):
        describe("someone/tiny", revision="v3")
    for path in ("../../../etc/passwd", "/etc/passwd", "", "a b", "x" * 300):
        with pytest.raises(ModelError, match="is no revision of someone/tiny"):
            describe("someone/tiny", revision=path)


def test_weights_of_a_preset_are_those_of_the_revision(tmp_path: Path) -> None:
    path = cached(tmp_path, "openai-community/gpt2", "model.safetensors")
    repository = tmp_path / "hf" / "hub" / "models--openai-community--gpt2"
    (repository / "refs" / "old").write_text(path.name)
    (repository / "refs" / "main").unlink()
    assert with_weights(describe("gpt2", revision="old"), revision="old").path == path


def test_where_the_hub_s_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cached(tmp_path, "someone/tiny", "pytorch_model.bin")
    monkeypatch.setenv("HF_HOME", "/nowhere")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    assert describe("someone/tiny").path == path


def test_a_model_cached_in_part_is_not_there(tmp_path: Path) -> None:
    path = cached(tmp_path, "someone/tiny", "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "HF_HUB_OFFLINE" in refusal("someone/tiny")
    assert describe("someone/tiny", config_only=True).path == path
    (path / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert describe("someone/tiny").path == path


def test_weights_of_a_preset_come_from_the_cache_of_the_hub(tmp_path: Path) -> None:
    path = cached(tmp_path, "openai-community/gpt2", "model.safetensors")
    found = with_weights(describe("gpt2"))
    assert (found.name, found.path, found.source, found.hub_id) == ("gpt2", path, "folder", "openai-community/gpt2")
    assert with_weights(found) is found


@pytest.mark.parametrize("model", ["opt-1.3b", "gpt3-1.3b"])
def test_a_preset_without_weights_here_says_what_to_do(model: str) -> None:
    with pytest.raises(ModelError, match="--weights dummy") as caught:
        with_weights(describe(model))
    assert model in str(caught.value)
    assert "\n" not in str(caught.value)


def _hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    """Stands in for the huggingface_hub package."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    package, utilities = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.utils")
    package.snapshot_download = download  # type: ignore[attr-defined]
    utilities.disable_progress_bars = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utilities)


@pytest.mark.parametrize(("offered", "wanted"), [("safetensors", ["model.safetensors"]), ("bin", ["pytorch_model.bin"])])
def test_a_download_takes_one_kind_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: str, wanted: list[str]) -> None:
    path = tmp_path / "downloaded"
    calls: list[list[str]] = []

    def download(hub_id: str, *, allow_patterns: list[str], **options: Any) -> str:
        calls.append(allow_patterns)
        if not path.exists():
            folder(path)
        if any(pattern.endswith(offered) for pattern in allow_patterns):
            (path / wanted[0]).write_bytes(b"")
        return str(path)

    _hub(monkeypatch, download)
    assert describe("someone/tiny").path == path
    assert [entry.name for entry in path.iterdir() if entry.suffix != ".json"] == wanted
    assert len(calls) == (2 if offered == "safetensors" else 3)


def test_without_weights_only_descriptions_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def download(hub_id: str, *, allow_patterns: list[str], **options: Any) -> str:
        calls.append(allow_patterns)
        return str(folder(tmp_path / "downloaded"))

    _hub(monkeypatch, download)
    assert describe("someone/tiny", config_only=True).spec.hidden == 24
    assert len(calls) == 1
    assert not any("safetensors" in pattern or "bin" in pattern for pattern in calls[0])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (type("GatedRepoError", (OSError,), {})("401\nlong"), "restricted"),
        (type("RepositoryNotFoundError", (OSError,), {})("404"), "no such model"),
        (type("LocalEntryNotFoundError", (OSError,), {})("gone"), "cannot be reached"),
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
    ],
)
def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def download(*arguments: Any, **options: Any) -> str:
        raise error

    _hub(monkeypatch, download)
    message = refusal("someone/tiny")
    assert said in message
    assert "second line" not in message


def test_a_repository_that_is_no_model_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "downloaded").mkdir()
    _hub(monkeypatch, lambda *arguments, **options: str(tmp_path / "downloaded"))
    assert "has no config.json" in refusal("someone/data")
    (tmp_path / "downloaded" / "config.json").write_text(json.dumps(TINY))
    assert "has no weights" in refusal("someone/tiny")


def test_without_the_package_the_hub_is_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "huggingface_hub is not installed" in refusal("someone/tiny")


def test_hub_ids() -> None:
    assert all(map(hub.is_hub_id, ["facebook/opt-1.3b", "AICrossSim/clm-1.1b", "a/b_c"]))
    assert not any(map(hub.is_hub_id, ["opt", "a/b/c", "a/", "/b", "a b/c", "a/b\n", "../x"]))
