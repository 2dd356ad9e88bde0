"""Batch jobs: every prompt's result once, whatever stops the job on its way."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferometer import LLM, SamplingParams
from inferometer.cli.main import main
from inferometer.engine.job.job import run_job
from inferometer.engine.job.prompt_file import PARAMETERS, read_prompts
from inferometer.engine.job.result_file import ResultFile
from inferometer.errors import UserError
from tiny_models import tiny_model

LINES: list[dict[str, Any]] = [
    {"prompt": "one", "id": "first"},
    {"prompt_token_ids": [5, 6, 7, 8], "max_new_tokens": 3},
    {"prompt": "drawn", "do_sample": True, "temperature": 2.0},
    {"prompt": "drawn", "do_sample": True, "temperature": 2.0, "id": 7},
    {"prompt": "stops", "stop": ["e", "t"], "max_new_tokens": 30},
    {"prompt": "a longer prompt than others", "max_new_tokens": 11, "prompt_logprobs": True, "top_logprobs": 2},
    {"prompt": "héllo", "logit_bias": {"65": 100}, "seed": 3, "ignore_eos": True},
]


def job(tmp_path: Path, *more: str, lines: list[dict[str, Any]] = LINES) -> list[str]:
    """What `generate` is given, `more` in the place of options that are here."""
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {
        "--model": str(tiny_model(tmp_path, "llama", vocab_size=256)),
        "--weights": "dummy",
        "--dtype": "float32",
        "--device": "cpu",
        "--max-new-tokens": "6",
        "--input": str(source),
        "--output": str(tmp_path / "results.jsonl"),
    }
    kept = [word for name, value in options.items() if name not in more for word in (name, value)]
    return ["generate", *kept, *more]


def results(tmp_path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda result: result["index"])


@pytest.mark.parametrize("order", ["continuous", "zigzag", "diagonal", "row"])
def test_every_prompt_gets_what_it_gets_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str) -> None:
    groups = [] if order == "continuous" else ["--group-size", "2"]
    assert main(job(tmp_path, "--admission", order, *groups)) == 0
    assert capsys.readouterr() == ("", "")
    found = results(tmp_path)
    assert [result["index"] for result in found] == list(range(len(LINES)))
    assert [result.get("id") for result in found] == ["first", None, None, 7, None, None, None]
    with LLM(tmp_path / "tiny-llama", weights="dummy", dtype="float32", device="cpu") as llm:
        for line, result in zip(LINES, found, strict=True):
            own = {key: value for key, value in line.items() if key in PARAMETERS and key != "logit_bias"}
            bias = {int(token): value for token, value in line["logit_bias"].items()} if "logit_bias" in line else None
            params = replace(SamplingParams(max_new_tokens=6, logit_bias=bias), **own)
            params = replace(params, seed=result.get("seed", params.seed))
            (alone,) = llm.generate([line.get("prompt", line.get("prompt_token_ids"))], params)
            assert (result["token_ids"], result["text"], result["finish_reason"]) == (alone.token_ids, alone.text, alone.finish_reason)
            assert result["prompt_tokens"] == len(alone.prompt_token_ids)
            assert result["logprobs"] == pytest.approx(alone.logprobs, abs=1e-5)
    assert found[2]["seed"] != found[3]["seed"]
    assert found[4]["finish_reason"] in ("stop_sequence", "length")
    assert len(found[5]["prompt_logprobs"]) == found[5]["prompt_tokens"]
    assert len(found[5]["top_logprobs"][0]) == 2


def test_a_job_cut_at_any_byte_goes_on_to_the_same_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = job(tmp_path, "--admission", "zigzag", "--group-size", "3", "--deterministic")
    assert main(command) == 0
    path = tmp_path / "results.jsonl"
    whole, expected = path.read_bytes(), results(tmp_path)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in sorted({0, 1, 5, *ends[:3], *(end - 1 for end in ends[:2]), ends[2] + 40, len(whole) - 1, len(whole)}):
        path.write_bytes(whole[:cut])
        capsys.readouterr()
        assert main(command) == 0
        assert results(tmp_path) == expected
        said = capsys.readouterr()
        assert said.out == ""
        begun = max((end for end in (0, *ends) if end <= cut), default=0)
        torn = cut > begun and cut + 1 not in ends  # a line that only lacks its end is whole
        assert (f"{cut - begun} bytes of a last line that a crash had torn are taken off" in said.err) == torn
        assert torn or said.err == ""


def test_what_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = job(tmp_path)
    assert main(command) == 0
    before = (tmp_path / "results.jsonl").read_bytes()
    monkeypatch.setattr("inferometer.engine.llm.LLM.__init__", lambda *_, **__: pytest.fail("no model is needed"))
    assert main(command) == 0
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize("change", [["--seed", "1"], ["--temperature", "0.5"], ["--dtype", "bfloat16"], ["--max-new-tokens", "7"], None])
def test_another_input_or_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str] | None) -> None:
    assert main(job(tmp_path)) == 0
    before = (tmp_path / "results.jsonl").read_bytes()
    again = job(tmp_path, *(change or ()), lines=LINES if change else LINES[:-1])
    assert main(again) == 2
    assert "holds results of another input or other settings; name another file" in capsys.readouterr().err
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_the_order_may_change_on_the_way(tmp_path: Path) -> None:
    assert main(job(tmp_path)) == 0
    expected, path = results(tmp_path), tmp_path / "results.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert main(job(tmp_path, "--admission", "diagonal", "--group-size", "2")) == 0
    found = results(tmp_path)
    assert [result["token_ids"] for result in found] == [result["token_ids"] for result in expected]


def test_a_full_disk_is_one_line_and_leaves_no_torn_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, written = job(tmp_path), 0
    write = os.write

    def short(file: int, data: Any) -> int:
        nonlocal written
        if written >= 700:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(file, data[: 700 - written])
        written += count
        return count

    with monkeypatch.context() as patch:
        patch.setattr("inferometer.engine.job.result_file.os.write", short)
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "No space left on device after" in said
    assert said.count("\n") == 1
    kept = (tmp_path / "results.jsonl").read_bytes()
    assert kept.endswith(b"\n")
    assert len(kept) <= 700
    assert main(command) == 0
    assert len(results(tmp_path)) == len(LINES)


def test_a_disk_that_fails_at_the_end_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written may not be there: the job is not done."""

    def failing(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("inferometer.engine.job.result_file.SYNC_S", math.inf)
        patch.setattr("inferometer.engine.job.result_file.os.fsync", failing)
        assert main(job(tmp_path)) == 1
    said = capsys.readouterr().err
    assert f"Input/output error after {len(LINES)} of {len(LINES)} results" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "give either prompt, a text, or prompt_token_ids"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "give either prompt"),
        ('{"prompt": 3}', "prompt must be a text, not 3"),
        ('{"prompt": ["a"]}', 'prompt must be a text, not ["a"]'),
        ('{"prompt_token_ids": []}', "must be a list of at least one whole number"),
        ('{"prompt_token_ids": [1.5]}', "must be a list of at least one whole number"),
        ('{"prompt_token_ids": [true]}', "must be a list of at least one whole number"),
        ('{"prompt_token_ids": [999]}', "token id 999 is outside the vocabulary"),
        ('{"prompt": ""}', "a prompt has no tokens"),
        ('{"prompt": "a", "max_tokens": 3}', '"max_tokens" is unknown'),
        ('{"prompt": "a", "temperature": -1}', "temperature must be a finite number of at least 0, not -1"),
        ('{"prompt": null}', "prompt must be a text, not null"),
        ('{"prompt": "a", "max_new_tokens": null}', "max_new_tokens must be a whole number of at least 1, not null"),
        ('{"prompt": "a", "max_new_tokens": true}', "max_new_tokens must be a whole number of at least 1, not true"),
        ('{"prompt": "a", "prompt_logprobs": 1}', "prompt_logprobs must be true or false, not 1"),
        ('{"prompt": "a", "stop": [null]}', "stop[0] must be a string that is not empty, not null"),
        ('{"prompt": "a", "top_p": NaN}', "NaN is no number of JSON"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "a token id of logit_bias must be a whole number"),
        ('{"prompt": "a", "stop_token_ids": [300]}', "stop_token_ids names token 300"),
        ('{"prompt": "a", "id": 1.5}', "id must be a text or a whole number, not 1.5"),
        ('{"prompt": "a", "id": "twice"}', 'the id "twice" is that of line 1, too'),
        ('{"prompt": "bad \\ud800"}', "line 3: the text holds a lone surrogate, U+D800, at character 4: remove it"),
        ('{"prompt": "a", "id": "\\udc00"}', 'the id "\\udc00" holds a lone surrogate'),
        ('{"prompt": "a", "max_new_tokens": 5000}', "are more than the 64 positions"),
        ('{"prompt": "a", "prompt": "b"}', '"prompt" is given twice; give it once'),
        ('{"prompt": "a", "logit_bias": {"5": 1, "5": 1}}', '"5" is given twice; give it once'),
        ('{"prompt": "a", "x": ' + "[" * 100000, "is n"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    command = job(tmp_path, lines=[{"prompt": "fine", "id": "twice"}])
    source = tmp_path / "prompts.jsonl"
    source.write_text(source.read_text() + "\n" + line + "\n")
    assert main(command) == 2
    err = capsys.readouterr().err
    assert f"--input {source}, line 3: " in err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "results.jsonl").exists() or not (tmp_path / "results.jsonl").read_bytes()


def test_a_line_is_named_where_a_chat_template_would_have_its_text(tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "fine"}\n{"prompt": "bad \\ud800"}\n')
    with pytest.raises(UserError, match=re.escape(f"--input {source}, line 2: the text holds a lone surrogate, U+D800, at character 4:")):
        read_prompts(source, SamplingParams())

    def encode(text: str) -> str:
        raise UserError(f"the chat template refuses {text}")

    source.write_text('{"prompt_token_ids": [1]}\n{"prompt": "bad"}\n')
    llm: Any = SimpleNamespace(seed=0, check=lambda row, params: row)
    with (
        ResultFile(tmp_path / "results.jsonl", "job", 2) as results,
        pytest.raises(UserError, match=re.escape(f"--input {source}, line 2: the chat template refuses bad")),
    ):
        run_job(llm, read_prompts(source, SamplingParams()), results, encode, lambda more: None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--json"], "leave those out"),
        (["a prompt"], "leave those out"),
        (["--output", "{source}"], "is the input"),
        (["--output", "{folder}"], "Is a directory"),
        (["--output", "{folder}/no/results"], "No such file or directory"),
        (["--input", "{folder}/nothing"], "No such file or directory"),
        (["--output", "/dev/null"], "is no file that a job could go on with"),
    ],
)
def test_impossible_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str) -> None:
    told = [word.format(source=tmp_path / "prompts.jsonl", folder=tmp_path) for word in more]
    assert main(job(tmp_path, *told)) == 2
    assert said in capsys.readouterr().err


def test_input_and_output_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--input", str(tmp_path / "x")]) == 2
    assert "--input and --output go together" in capsys.readouterr().err
    (tmp_path / "empty").write_text("\n \n")
    assert main(["generate", "--input", str(tmp_path / "empty"), "--output", str(tmp_path / "out")]) == 2
    assert "has no prompts" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["some text", "some text\n", '{"index": 0}\n', '{"index":0,"job":"other"}\n', "[]\n", "\n"])
def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    assert main(job(tmp_path)) == 2
    assert "name another file" in capsys.readouterr().err
    assert path.read_text() == content


@pytest.mark.slow
def test_a_killed_job_goes_on(tmp_path: Path) -> None:
    lines = [{"prompt": f"prompt {i}", "max_new_tokens": 40, "do_sample": i % 2 == 0} for i in range(60)]
    command = [
        sys.executable,
        "-m",
        "inferometer",
        *job(tmp_path, "--deterministic", "--admission", "diagonal", "--group-size", "2", "--num-groups", "3", lines=lines),
    ]
    path = tmp_path / "results.jsonl"
    kills = 0
    for wanted in (1, 15, 35):
        process = subprocess.Popen(command)
        while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < wanted):
            time.sleep(0.005)  # another process's file has no event
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills
    subprocess.run(command, check=True)
    interrupted = results(tmp_path)
    assert [result["index"] for result in interrupted] == list(range(60))
    path.unlink()
    subprocess.run(command, check=True)
    assert results(tmp_path) == interrupted
