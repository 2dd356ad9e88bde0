"""`inferometer estimate` of checkpoints in formats that are published and not run, and what the commands that run models say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.cli.main import main
from inferometer.model.presets import PRESETS


def test_the_answer_says_what_weights_are_in_and_where_that_is_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(PRESETS["gpt-oss-20b"].config)))
    for model, where in (
        ("gpt-oss-20b", "openai/gpt-oss-20b's config.json, as the preset has it"),
        (str(folder), f"{folder}'s config.json"),
    ):
        assert main(["estimate", model, "--device", "h100-sxm", "--stack", "vllm"]) == 0
        said = capsys.readouterr().out
        assert f"\nweights: experts in mxfp4 (e2m1, 8 bits of scale for each 32), all else in bfloat16, says {where}; " in said
        assert "widened to bfloat16 for products\n" in said
        assert "\n  experts" in said
        assert "none is of weights in mxfp4, so how far they were off is squared" in said
        assert main(["estimate", model, "--device", "h100-sxm", "--stack", "vllm", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert where in found["weights_format"]
        assert sum(found["breakdown"]["weights_by_part"].values()) == found["breakdown"]["memory_bytes"]["weights"]


def test_a_checkpoint_that_is_run_in_its_format_is_not_asked_for_widened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({**PRESETS["llama-2-7b"].config, "quantization_config": stated}))
    assert main(["estimate", str(tmp_path), "--device", "h100-sxm", "--quantize", "none"]) == 2
    assert "--quantize none: the checkpoint is in gptq-int4-g128, and so it is run; leave it out" in capsys.readouterr().err


def test_no_command_of_bench_is_offered_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-405b-fp8", "--device", "h100-sxm"]) == 0
    said = capsys.readouterr().out
    assert "measures this case: llama-3.1-405b-fp8 is estimated only: weights in fbgemm-fp8 cannot be run" in said
    assert "--offload" not in said
    assert main(["estimate", "gpt-oss-20b", "--device", "h100-sxm", "--stack", "vllm"]) == 0
    assert "verify: vllm bench latency --model openai/gpt-oss-20b " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_what_runs_models_refuses_them(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = dict(PRESETS["llama-3.1-405b-fp8"].config)
    (folder / "config.json").write_text(json.dumps(config))
    model = ["--model", str(folder), "x"] if command == "generate" else [str(folder)]
    assert main([command, *model]) == 2
    said = capsys.readouterr().err
    assert "'fbgemm_fp8': estimated (`inferometer estimate`) and not run; use the checkpoint before quantisation" in said
    assert said.count("\n") == 1
