"""This package's own folders of weights in few bits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferometer import LLM
from inferometer.errors import ModelError, RunError, UserError
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import ROUNDED_FORMATS, weight_format
from inferometer.model.parameters import head_matrix
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.folder import QuantisedFolder, check_free, matrices_to_nearest
from inferometer.nn.formats.layout import layer_matrices
from inferometer.nn.load import open_source
from tiny_models import CONFIGS, tiny_model


def quantised_folder(tmp_path: Path, kind: str, name: str) -> tuple[Path, Path]:
    """A tiny model with weights, and the same in few bits."""
    path = tiny_model(tmp_path, kind)
    spec = describe(str(path), config_only=True).spec
    source = DummySource(spec, family(kind), seed=2)
    stored = {name: source.read(name, "cpu", torch.float32).bfloat16().contiguous() for name in source.tensors()}
    save_file(stored, path / "model.safetensors")
    description = describe(str(path))
    read, out = open_source(description), tmp_path / "out"
    form = weight_format(name, "float32")
    QuantisedFolder(description, read, spec, family(kind), form).write(out, matrices_to_nearest(read, spec, family(kind), form))
    return path, out


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", ROUNDED_FORMATS)
def test_a_folder_holds_what_loading_rounds_to(tmp_path: Path, kind: str, name: str) -> None:
    path, out = quantised_folder(tmp_path, kind, name)
    assert json.loads((out / "config.json").read_text())["quantization_config"]["format"] == name
    wanted, found = LLM(path, device="cpu", dtype="float32", quantize=name).model, LLM(out, device="cpu", dtype="float32").model
    assert wanted.quantised.keys() == found.quantised.keys()
    for parameter, weight in wanted.quantised.items():
        theirs = found.quantised[parameter]
        assert (weight.kind, weight.group, weight.activations) == (theirs.kind, theirs.group, theirs.activations)
        for ours, other in zip(weight.tensors, theirs.tensors, strict=True):
            assert ours.dtype == other.dtype
            assert torch.equal(ours.view(torch.uint8), other.view(torch.uint8))
    plain_ones = set(dict(wanted.named_parameters())) - wanted.quantised.keys()
    assert all(torch.equal(wanted.get_parameter(each), found.get_parameter(each)) for each in plain_ones)


@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2"])
def test_a_head_that_is_kept_is_plain(tmp_path: Path, kind: str) -> None:
    path, out = quantised_folder(tmp_path, kind, "int4-g64-kept-head")
    model = LLM(out, device="cpu", dtype="float32").model
    assert set(model.quantised) == set(layer_matrices(model.spec))
    ours = LLM(path, device="cpu", dtype="float32", quantize="int4-g64").model
    assert set(ours.quantised) == {*layer_matrices(model.spec), head_matrix(model.spec)}
    assert ours.weight_bytes < model.weight_bytes
    with pytest.raises(UserError, match="int4-g64-kept-head already"):
        LLM(out, device="cpu", quantize="int4-g64")
    assert set(LLM(out, device="cpu", dtype="float32", quantize="int4-kept-head").model.quantised) == set(model.quantised)


def test_a_folder_of_before_heads_were_rounded_is_read(tmp_path: Path) -> None:
    """Version 1 says of an int4 folder what version 2 calls int4 with a head that is kept."""
    _, out = quantised_folder(tmp_path, "opt", "int4-g64-kept-head")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] |= {"version": 1, "format": "int4-g64"}
    (out / "config.json").write_text(json.dumps(config))
    llm = LLM(out, device="cpu", dtype="float32")
    assert llm.weight_format is not None
    assert llm.weight_format.name == "int4-g64-kept-head"
    assert set(llm.model.quantised) == set(layer_matrices(llm.model.spec))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t, name: t.update({name: t[name].to(torch.float32)}), "type"),
        (lambda t, name: t.update({name: t[name][:, 0].contiguous()}), "dimensions"),
        (lambda t, name: t.update({f"{name}_row_scale": t[f"{name}_row_scale"][:3].contiguous()}), "scales"),
        (lambda t, name: t.update({f"{name}_row_scale": t[f"{name}_row_scale"] * torch.inf}), "not finite"),
        (lambda t, name: t.pop(f"{name}_row_scale"), "embed_tokens|lm_head"),
    ],
)
def test_a_damaged_head_is_one_clear_error(tmp_path: Path, damage: Any, said: str) -> None:
    _, out = quantised_folder(tmp_path, "llama", "int4-g64")
    tensors = load_file(out / "model.safetensors")
    name = next(name for name in tensors if name.endswith("_row_scale")).removesuffix("_row_scale")
    damage(tensors, name)
    save_file(tensors, out / "model.safetensors")
    with pytest.raises(ModelError, match=said) as caught:
        LLM(out, device="cpu", dtype="float32")
    assert "\n" not in str(caught.value)


def test_of_two_that_write_one_folder_the_first_to_end_has_it(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, "llama")
    spec = describe(str(path), config_only=True).spec
    source, kind = DummySource(spec, family("llama"), seed=2), family("llama")
    out, written = tmp_path / "out", {}

    def write(name: str, then: Callable[[], None]) -> None:
        form = weight_format(name, "float32")
        folder = QuantisedFolder(describe(str(path), config_only=True), source, spec, kind, form)
        folder.write(out, matrices_to_nearest(source, spec, kind, form), then)

    def another() -> None:
        if not written:
            written["int8"] = True
            write("int8", lambda: None)

    with pytest.raises(UserError, match="is there already"):
        write("int4-g32", another)
    assert json.loads((out / "config.json").read_text())["quantization_config"]["format"] == "int8"
    assert LLM(out, device="cpu", dtype="float32").weight_format == weight_format("int8", "float32")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "tiny-llama"]


def test_a_place_that_no_folder_can_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume of a container is empty and a folder, and cannot be replaced by another: as it begins, not when all is written."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "volume")
    with pytest.raises(UserError, match=f"volume is where a disk is mounted; name a folder in it, such as .*{os.sep}model$"):
        check_free(tmp_path / "volume")
    with pytest.raises(UserError, match=f"b: {tmp_path / 'file'} is a file; name a folder elsewhere$"):
        check_free(tmp_path / "file" / "a" / "b")
    check_free(tmp_path / "volume" / "a" / "b")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, "llama")
    spec = describe(str(path), config_only=True).spec
    source, kind = DummySource(spec, family("llama"), seed=2), family("llama")
    form = weight_format("int8", "float32")
    folder = QuantisedFolder(describe(str(path), config_only=True), source, spec, kind, form)
    steps = []

    def full() -> None:
        steps.append(None)
        if len(steps) == 5:
            raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="No space left") as caught:
        folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form), full)
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt):
        folder.write(tmp_path / "out", lambda name: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tiny-llama"]
    (tmp_path / "out").mkdir()
    folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form))
    with pytest.raises(UserError, match="is there already"):
        folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "tiny-llama"]
