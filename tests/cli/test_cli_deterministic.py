"""--deterministic on the command line: what it gives, what a record says of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.bench.records.record import Record
from inferometer.cli.main import main
from tiny_models import tiny_model

WORDS = ["b", "and a far longer one", "c d", "another", "e", "and one more of them"]


def generated(path: Path, prompts: list[str], capsys: pytest.CaptureFixture[str], *more: str) -> list[tuple[str, list[float]]]:
    model = ["--model", str(path), "--weights", "dummy", "--dtype", "float32", "--device", "cpu"]
    assert main(["generate", *prompts, *model, "--max-new-tokens", "12", "--ignore-eos", "--json", *more]) == 0
    return [(answer["text"], answer["logprobs"]) for answer in json.loads(capsys.readouterr().out)["completions"]]


def test_generate_gives_a_prompt_the_same_log_probabilities_in_any_company(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_model(tmp_path, "llama")
    (alone,) = generated(path, ["a prompt"], capsys, "--deterministic")
    for place in (0, 3, 6):
        prompts = [*WORDS[:place], "a prompt", *WORDS[place:]]
        assert generated(path, prompts, capsys, "--deterministic")[place] == alone


def bench(path: Path, *more: str) -> list[str]:
    return [
        "bench", str(path), "--weights", "dummy", "--dtype", "float32", "--device", "cpu", "--runs", "1", "--batch-size", "2",
        "--sequence-length", "8", "--decode-length", "3", *more,
    ]  # fmt: skip


def test_records_and_tables_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_model(tmp_path, "llama")
    records = []
    for more in ([], ["--deterministic"]):
        assert main(bench(path, "--json", *more)) == 0
        (value,) = json.loads(capsys.readouterr().out)["records"]
        records.append(Record.from_json(value))
    assert [record.deterministic for record in records] == [False, True]
    assert [record.status for record in records] == ["ok", "ok"]
    assert records[0].case_id != records[1].case_id
    assert main(bench(path, "--deterministic")) == 0
    assert "| Deterministic      | true" in capsys.readouterr().out
    assert main(bench(path)) == 0
    assert "Deterministic" not in capsys.readouterr().out


def test_a_record_from_before_is_one_of_fast_numerics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tiny_model(tmp_path, "llama"), "--json")) == 0
    (value,) = json.loads(capsys.readouterr().out)["records"]
    del value["deterministic"]
    assert not Record.from_json(value).deterministic


def test_transformers_has_no_such_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tiny_model(tmp_path, "llama"), "--deterministic", "--backend", "hf")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--deterministic" in err
    assert "--backend hf" in err
