"""What MODEL may be: folders, GGUF files, the embedded model and presets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from described_folders import TINY, folder, refusal
from stated_sizes import sizes_of

from inferometer.errors import UserError
from inferometer.model import gguf, store
from inferometer.model.description import describe, with_weights

pytestmark = pytest.mark.usefixtures("nowhere")


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
        defaults = transformers.AutoConfig.for_model(kind)
        found = describe(str(folder(tmp_path / kind, sizes_of(kind, defaults.to_dict()))))
        theirs = defaults.eos_token_id
        assert found.eos_token_ids == (() if theirs is None else (theirs,))


@pytest.mark.parametrize("value", ["2", True, [1, "2"], 2.0, {"a": 1}])
def test_a_malformed_end_token_is_said(tmp_path: Path, value: Any) -> None:
    assert "eos_token_id" in refusal(str(folder(tmp_path / "tiny", {**TINY, "eos_token_id": value})))


def test_a_configuration_that_lacks_sizes_is_named_with_them(tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny", {option: value for option, value in TINY.items() if option not in ("n_embd", "vocab_size")})
    assert refusal(str(path)).startswith(f"{path / 'config.json'} lacks n_embd, vocab_size: without those it describes no model; ")


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
