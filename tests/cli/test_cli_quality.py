"""`inferometer quality` against a reference that is another model than the one in question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inferometer.cli.main import main
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.nn.dummy import DummySource
from tiny_models import tiny_model


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Ships come in with the tide, and leave with it. " * 3)
    return path


def written(folder: Path, name: str, *, damaged: bool = False, **changes: Any) -> Path:
    """A model with random weights; damaged: one of which is no number."""
    (folder / name).mkdir()
    path = tiny_model(folder / name, **{"family": "llama", **changes})
    source = DummySource(describe(str(path), config_only=True).spec, family(changes.get("family", "llama")), seed=2)
    tensors = {tensor: source.read(tensor, "cpu", torch.float32) for tensor in source.tensors()}
    if damaged:
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, path / "model.safetensors")
    return path


def compared(model: Path, reference: Path, text: Path, *more: str) -> int:
    return main(
        ["quality", str(model), "--reference", str(reference), "--tokenizer", "byte", "--device", "cpu", "--file", str(text), *more]
    )


def test_a_reference_that_predicts_no_tokens_is_refused(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(written(tmp_path, "own"), written(tmp_path, "reference", family="bert"), text) == 2
    assert capsys.readouterr().err == "inferometer: error: tiny-bert is an encoder and predicts no tokens; use a decoder\n"


@pytest.mark.parametrize("damaged", [(True, False), (False, True)])
def test_damaged_weights_are_told_and_no_figure(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], damaged: tuple[bool, bool]
) -> None:
    own, reference = (written(tmp_path, name, damaged=bad) for name, bad in zip(("own", "reference"), damaged, strict=True))
    assert compared(own, reference, text) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "inferometer: error: tiny-llama in float32 gives no token a finite score: its weights are damaged\n")


def test_windows_fit_the_model_that_holds_the_fewest_tokens(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long, short = (written(tmp_path, str(positions), family="gpt2", n_positions=positions) for positions in (64, 16))
    for pair in ((long, short), (short, long)):
        assert compared(*pair, text, "--json") == 0
        assert json.loads(capsys.readouterr().out)["sequence_length"] == 16
        assert compared(*pair, text, "--sequence-length", "32") == 2
        assert "--sequence-length 32 is more than the 16 tokens that tiny-gpt2 can hold; use at most 16" in capsys.readouterr().err
