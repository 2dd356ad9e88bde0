"""What commands have in common: each flag reaches what it is for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from inferometer.cli.main import main, parser
from inferometer.cli.options import add_sampling_options, sampling_params
from inferometer.cli.study_work import _overrides
from inferometer.errors import UserError
from inferometer.schedule.sampling import SamplingParams

SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "typical_p": 0.8, "repetition_penalty": 1.1}


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sampling(*words: str) -> SamplingParams:
    known = argparse.ArgumentParser()
    add_sampling_options(known)
    return sampling_params(known.parse_args(words))


@pytest.mark.parametrize("name", SAMPLING)
def test_a_sampling_flag_sets_its_parameter_and_no_other(name: str) -> None:
    plain, found = sampling(), sampling(flag(name), str(SAMPLING[name]))
    assert {each: getattr(found, each) for each in SAMPLING} == {each: getattr(plain, each) for each in SAMPLING} | {name: SAMPLING[name]}


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_generate_has_penalties_as_well(name: str) -> None:
    arguments = parser("generate").parse_args(["generate", flag(name), "0.5", "x"])
    assert getattr(sampling_params(arguments), name) == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "-1"),
        ("top_k", "-1"),
        ("top_p", "1.5"),
        ("typical_p", "0"),
        ("repetition_penalty", "0"),
        ("frequency_penalty", "nan"),
    ],
)
def test_a_value_out_of_range_is_named_by_its_flag(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", flag(name), value, "x"]) == 2
    assert f"inferometer: error: {flag(name)} must " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (("--timeout-seconds", "2.5"), "timeout_s", 2.5),
        (("--gpu-memory", "8"), "gpu_memory", 8.0),
        (("--runs", "3"), "runs", 3),
        (("--tuning-seconds", "0"), "tuning_seconds", 0.0),
        (("--device", "cpu"), "device", "cpu"),
    ],
)
def test_a_study_takes_settings_for_all_its_cases(words: tuple[str, ...], setting: str, value: object) -> None:
    assert _overrides(parser("study").parse_args(["study", "run", "backend-sweep", *words])) == {setting: value}
    with pytest.raises(UserError, match="--timeout-seconds"):
        parser("study").parse_args(["study", "run", "backend-sweep", "--timeout-seconds", "0"])


KV_COMMANDS = ["generate x", "serve", "bench", "bench --backend hf", "estimate opt-125m --device l4", "quality --file /dev/null"]


@pytest.mark.parametrize("command", KV_COMMANDS)
@pytest.mark.parametrize("name", ["float32", "float16", "bf16", "fp9", "FP8"])
def test_a_cache_has_one_rule_in_every_command(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--kv-dtype", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--kv-dtype" in err
    assert "fp8" in err
    assert "auto" in err


@pytest.mark.parametrize(
    "command", ["generate x", "bench tiny-opt --weights dummy", "quality --file /dev/null --kv-dtype fp8", "devices --calibrate"]
)
@pytest.mark.parametrize("device", ["cpu:3", "cpu:0", "gpu", "cuda:x", "CPU", ""])
def test_a_device_that_is_none_is_told(
    command: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))  # nothing is kept of what would be measured by mistake
    assert main([*command.split(), "--device", device]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--device {device}".strip() + " is unknown; use auto, cpu, cuda or cuda:N" in err


@pytest.mark.parametrize("command", ["bench", "estimate", "quality --file t", "quantize --quantize int8 -o d", "serve"])
def test_a_model_is_named_by_itself_or_behind_its_option(command: str) -> None:
    name, *rest = command.split()
    for words in (["m"], ["--model", "m"], ["m", "--model", "m"], ["--model", "m", "m"]):
        for line in ([name, *words, *rest], [name, *rest, *words]):
            assert parser(name).parse_args(line).model == "m"
    assert parser(name).parse_args([name, *rest]).model is None


@pytest.mark.parametrize("command", ["bench", "estimate", "quality --file t", "quantize --quantize int8 -o d", "serve"])
def test_two_models_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("one --model two", "--model two one"):
        assert main([*command.split(), *words.split()]) == 2
        assert capsys.readouterr().err == "inferometer: error: MODEL one and --model two name two models; give one\n"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--stop", "-x", "a"], "--stop: expected one argument (one that begins with a dash goes behind --stop=); see"),
        (["--presence-penalty", "-1e-1"], "(one that begins with a dash goes behind --presence-penalty=); see"),
        (["-a"], "unrecognized arguments: -a (a PROMPT that begins with a dash comes last, behind --); see"),
    ],
)
def test_what_begins_with_a_dash_and_is_no_option_is_told_its_place(
    words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *words]) == 2
    assert remedy in capsys.readouterr().err
