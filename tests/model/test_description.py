"""What MODEL may be: folders, GGUF files, the embedded model, presets and models of the Hub; no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inferometer.errors import ModelError, UserError
from inferometer.model import gguf, hub, store
from inferometer.model.description import describe, with_weights

TINY: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 61,
    "n_positions": 32,
    "eos_token_id": 3,
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of ours, an empty cache of the Hub's, no network and an empty working directory."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(store, "_installed", lambda model: None)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def folder(path: Path, config: Any = TINY, **files: Any) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(model: str | None) -> str:
    with pytest.raises(ModelError) as caught:
        describe(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny")
    found = describe(str(path))
    assert (found.name, found.path, found.source, found.hub_id) == ("tiny", path, "folder", None)
    assert (found.spec.hidden, found.spec.name) == (24, "tiny")
    assert found.config == TINY
    assert found.eos_token_ids == (3,)
    assert describe(f"{path}/") == found


def test_a_folder_named_as_a_preset_is_the_folder(tmp_path: Path) -> None:
    folder(tmp_path / "cwd" / "gpt2")
    assert describe("gpt2").source == "folder"
    folder(tmp_path / "cwd" / "facebook" / "opt-1.3b")
    assert describe("facebook/opt-1.3b").spec.hidden == 24


def test_a_folder_without_a_model_does_not_hide_a_preset(tmp_path: Path) -> None:
    (tmp_path / "cwd" / "gpt2").mkdir()
    assert describe("gpt2").source == "preset"


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({"eos_token_id": 3}, {"eos_token_id": [5, 7]}, (5, 7)),
        ({"eos_token_id": 3}, {"eos_token_id": 5}, (5,)),
        ({"eos_token_id": 3}, {}, (3,)),
        ({"eos_token_id": 3}, None, (3,)),
        ({"eos_token_id": [3, 4, 3]}, None, (3, 4)),
        ({"eos_token_id": None}, None, ()),
        ({"eos_token_id": None}, {"eos_token_id": None}, ()),
        ({"eos_token_id": -1}, None, ()),
        ({"eos_token_id": [3, 61, 60]}, None, (3, 60)),
    ],
)
def test_end_tokens(tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, ids: tuple[int, ...]) -> None:
    files = {} if generation is None else {"generation_config": generation}
    assert describe(str(folder(tmp_path / "tiny", {**TINY, **config}, **files))).eos_token_ids == ids


def test_an_end_token_that_is_left_out_is_the_family_s(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for kind in ("bloom", "opt", "gpt2", "gpt_bigcode", "llama", "mistral", "qwen2", "bert"):
        found = describe(str(folder(tmp_path / kind, {"model_type": kind})))
        theirs = transformers.AutoConfig.for_model(kind).eos_token_id
        assert found.eos_token_ids == (() if theirs is None else (theirs,))


@pytest.mark.parametrize("value", ["2", True, [1, "2"], 2.0, {"a": 1}])
def test_a_malformed_end_token_is_said(tmp_path: Path, value: Any) -> None:
    assert "eos_token_id" in refusal(str(folder(tmp_path / "tiny", {**TINY, "eos_token_id": value})))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, "\\xff", '{"a": ' + "1" * 5000 + "}"])
def test_a_broken_configuration_is_named(tmp_path: Path, text: str) -> None:
    assert "config.json" in refusal(str(folder(tmp_path / "tiny", text)))


def test_a_broken_generation_configuration_is_named(tmp_path: Path) -> None:
    assert "generation_config.json" in refusal(str(folder(tmp_path / "tiny", TINY, generation_config="{")))


def test_bytes_that_are_no_text_are_no_configuration(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny")
    (path / "config.json").write_bytes(b"\xff\xfe\x00{")
    assert "not valid JSON" in refusal(str(path))


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(str(tmp_path / "empty"))
    (tmp_path / "empty" / "model.gguf").write_bytes(b"")
    assert str(tmp_path / "empty" / "model.gguf") in refusal(str(tmp_path / "empty"))


def test_what_the_reader_refuses_is_refused_here(tmp_path: Path) -> None:
    assert "'mixtral'" in refusal(str(folder(tmp_path / "tiny", {"model_type": "mixtral"})))


@pytest.mark.parametrize("model", ["/no/such/folder", "./nothing", "~/no-such-folder-here", "weights.gguf", "folder/"])
def test_paths_that_are_not_there(model: str) -> None:
    assert "no such file or folder" in refusal(model)


def test_another_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "pass the folder" in refusal(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("model", ["", "  ", "opt-1.3x", "a" * 5000, "nul\0", "line\nbreak", "ö/ü"])
def test_names_that_mean_nothing(model: str) -> None:
    message = refusal(model)
    assert len(message) < 400


def test_close_names_are_offered() -> None:
    assert "opt-1.3b" in refusal("opt-1.3x")
    assert "opt-1.3b" in refusal("facebook/opt-1.3")


def test_a_preset() -> None:
    found = describe("bigscience/bloomz-7b1-mt")
    assert (found.name, found.source, found.path, found.hub_id) == ("bloomz-7b1", "preset", None, "bigscience/bloomz-7b1-mt")
    assert found.spec.layers == 30
    assert found.eos_token_ids == (2,)
    assert json.loads(json.dumps(found.config))["model_type"] == "bloom"


def test_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Tiny.GGUF").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "gguf_config", lambda path: {**TINY, "eos_token_id": None})
    found = describe(str(tmp_path / "Tiny.GGUF"))
    assert (found.name, found.source, found.path, found.eos_token_ids) == ("Tiny", "gguf", tmp_path / "Tiny.GGUF", ())


def test_the_embedded_model_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    monkeypatch.setattr(gguf, "gguf_config", lambda path: TINY)
    monkeypatch.setattr(store, "locate", lambda name: None)
    monkeypatch.setattr(store, "fetch", lambda name: path)
    assert describe("smollm2-135m").source == "preset"
    assert describe(None, config_only=True).source == "preset"
    assert with_weights(describe("smollm2-135m")) == describe(None)
    found = describe(None)
    assert (found.name, found.source, found.path, found.hub_id) == ("smollm2-135m", "gguf", path, "HuggingFaceTB/SmolLM2-135M-Instruct")
    monkeypatch.setattr(store, "locate", lambda name: path)
    assert describe("smollm2-135m") == describe("SmolLM2-135M") == found
    assert describe("HuggingFaceTB/SmolLM2-135M-Instruct").source == "preset"


def test_an_embedded_model_that_cannot_be_fetched_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1, stdout="", stderr="ERROR: no network"))
    with pytest.raises(UserError, match="inferometer models fetch smollm2-135m"):
        describe(None)


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
