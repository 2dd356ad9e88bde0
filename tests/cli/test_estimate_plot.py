"""`inferometer estimate --plot` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from inferometer.cli.estimate_plot import KINDS
from inferometer.cli.main import main

ASKED = ["estimate", "opt-1.3b", "--device", "a100-sxm-80gb", "--batch-size", "4", "--sequence-length", "512", "--decode-length", "32"]


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "home"))


def _words(file: Path) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.parse(file).iter() if each.tag.endswith(("}text", "}title"))]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("breakdown", {"prefill: time of all layers (ms)", "decode (token): time of all layers (ms)", "qkv"}),
        ("roofline", {"arithmetic intensity (FLOP/byte)", "rate (FLOP/s)"}),
        ("batch", {"batch (sequences)", "time (ms)", "prefill", "decode (token), bound"}),
        ("context", {"context (prompt tokens)", "time (ms)"}),
        ("card", {"decode (token) (ms)", "h100-sxm", "t4"}),
    ],
)
def test_each_kind_is_an_image_with_its_axes(kind: str, words: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plot.svg"
    assert main([*ASKED, "--plot", str(file), "--plot-kind", kind]) == 0
    out, err = capsys.readouterr()
    assert "opt-1.3b" in out
    assert err == ""
    assert words <= set(_words(file))


def test_every_kind_is_tested() -> None:
    assert KINDS == ("breakdown", "roofline", "batch", "context", "card")


def test_what_the_host_link_brings_is_told_beside_the_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "opt-6.7b", "--device", "l4", "--offload", "weights", "--plot", str(tmp_path / "plot.svg")]
    assert main([*asked, "--json"]) == 0
    brought = json.loads(capsys.readouterr().out)["breakdown"]["decode_token_ms"]["host_link"]
    assert f"decode (token), beside {brought:.3g} ms of the host link: time of all layers (ms)" in _words(tmp_path / "plot.svg")


def test_contexts_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    assert main([*ASKED, "--plot", str(tmp_path / "plot.svg"), "--plot-kind", "context"]) == 0
    hints = [word for word in _words(tmp_path / "plot.svg") if word.startswith("prefill: ")]
    assert "prefill: 1024," in " ".join(hints)
    assert not any(word.startswith(("prefill: 2048,", "prefill: 4096,")) for word in hints)


def test_a_forward_alone_can_be_drawn(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    assert main(["estimate", "clm-60m", "--device", "rtx-a5000", "--forward-only", "--loss", "--plot", str(file)]) == 0
    assert "forward: time of all layers (ms)" in _words(file)


def test_a_file_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--plot", "/nowhere/plot.svg"]) == 2
    assert "--plot /nowhere/plot.svg: No such file" in capsys.readouterr().err


def test_a_kind_without_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--plot-kind", "card"]) == 2
    assert "--plot-kind card needs --plot" in capsys.readouterr().err
