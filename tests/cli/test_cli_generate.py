from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from inferometer import LLM, SamplingParams
from inferometer.cli.generate import _print
from inferometer.cli.main import main
from inferometer.engine.engine import Engine
from inferometer.errors import UserError
from inferometer.model.store import locate
from inferometer.schedule.admission import Admission
from inferometer.schedule.completion import Completion, StreamedToken
from inferometer.schedule.groups import Diagonal
from tiny_models import tiny_model


def arguments(tmp_path: Path, *more: str) -> list[str]:
    model = str(tiny_model(tmp_path, "llama", vocab_size=256))
    return ["generate", "--model", model, "--weights", "dummy", "--dtype", "float32", "--device", "cpu", "--max-new-tokens", "6", *more]


def test_the_text_goes_to_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "hello")) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert err == ""
    assert main(arguments(tmp_path, "hello", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["completions"][0]["text"] == out[:-1]


def test_json_has_everything_of_each_completion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "one", "two", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert [c["prompt"] for c in document["completions"]] == ["one", "two"]
    first = document["completions"][0]
    assert first["prompt_token_ids"] == list(b"one")
    assert len(first["token_ids"]) == len(first["logprobs"]) == 6
    assert first["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompts", "warned"),
    [(("opt-1.3b", "hello"), True), (("opt-1.3b",), False), (("hello", "opt-1.3b"), False)],
)
def test_a_model_among_the_prompts_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prompts: tuple[str, ...], warned: bool
) -> None:
    """Other commands take it there."""
    assert main([*arguments(tmp_path), *prompts]) == 0
    err = capsys.readouterr().err
    assert (err == "inferometer: warning: opt-1.3b is a prompt here, and the model is another; --model opt-1.3b loads it\n") == warned
    assert bool(err) == warned


def test_the_prompt_may_come_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    assert main(arguments(tmp_path, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["completions"][0]["prompt"] == "two\nlines"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the second in the locale C
def test_standard_input_that_is_no_text_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
    assert main(arguments(tmp_path)) == 2
    assert "standard input is not utf-8 text at byte 3" in capsys.readouterr().err


def test_no_prompt_at_all_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(arguments(tmp_path)) == 2
    assert "no prompt" in capsys.readouterr().err


def test_sampling_options_reach_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for more in ((), ("--do-sample", "--seed", "1"), ("--do-sample", "--seed", "1"), ("--do-sample", "--temperature", "3", "--seed", "2")):
        assert main(arguments(tmp_path, "hello", "--json", *more)) == 0
        outs.append(json.loads(capsys.readouterr().out)["completions"][0]["token_ids"])
    assert outs[1] == outs[2]
    assert outs[0] != outs[1] != outs[3]


def test_a_system_message_needs_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "hello", "--system", "be brief")) == 2
    assert "--system" in capsys.readouterr().err


def test_a_prompt_longer_than_the_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "x" * 100)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "64" in err


def token(prompt: int, text: str, *, last: bool = False) -> StreamedToken:
    done = Completion([1], [2], text, [0.0], None, "length") if last else None
    return StreamedToken(prompt=prompt, index=0, token_id=2, text=text, logprob=0.0, completion=done)


def test_several_prompts_are_printed_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    stream = [
        token(0, "a"), token(1, "x"), token(2, "p", last=True), token(0, "b"), token(1, "y", last=True), token(0, "c", last=True),
    ]  # fmt: skip
    _print(stream, 3)
    assert capsys.readouterr().out == "--- 1/3 ---\nabc\n--- 2/3 ---\nxy\n--- 3/3 ---\np\n"


def test_text_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def stream():  # type: ignore[no-untyped-def]
        yield token(0, "a")
        seen.append(capsys.readouterr().out)
        yield token(0, "b", last=True)
        seen.append(capsys.readouterr().out)

    _print(stream(), 1)
    assert seen == ["a", "b\n"]


@pytest.mark.real
@pytest.mark.skipif(locate("smollm2-135m") is None, reason="inferometer models fetch smollm2-135m brings it")
def test_the_embedded_model_knows_the_capital(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "The capital of France is", "--raw", "--max-new-tokens", "2", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.startswith(" Paris.")


@pytest.mark.parametrize(
    "more",
    [
        ["--admission", "continuous"],
        ["--admission", "zigzag", "--group-size", "2"],
        ["--admission", "diagonal", "--group-size", "1", "--num-groups", "2"],
        ["--admission", "row"],
    ],
)
def test_an_admission_changes_no_token(tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for given in ([], more):
        assert main(arguments(tmp_path, "one", "two or", "three", "four of them", "--json", *given)) == 0
        texts.append([c["token_ids"] for c in json.loads(capsys.readouterr().out)["completions"]])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--admission", "spiral"], "--admission"),
        (["--group-size", "2"], "--group-size"),
        (["--num-groups", "2"], "--num-groups"),
        (["--admission", "row", "--num-groups", "2"], "--num-groups"),
        (["--admission", "diagonal", "--group-size", "0"], "--group-size"),
    ],
)
def test_an_admission_that_means_nothing_is_refused_by_its_flag(
    tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "one", *more)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_the_admission_reaches_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Admission] = []
    started = Engine.__init__

    def watched(engine: Engine, *given: Any, **options: Any) -> None:
        seen.append(options["admission"])
        started(engine, *given, **options)

    monkeypatch.setattr(Engine, "__init__", watched)
    assert main(arguments(tmp_path, "one", "--admission", "diagonal", "--group-size", "3", "--num-groups", "2")) == 0
    assert seen == [Diagonal(3, 2)]


def test_a_host_memory_that_nothing_fits_through_is_refused_with_the_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["generate", "x", "--model", "tiny-opt", "--weights", "dummy", "--tokenizer", "byte", "--raw", "--device", "cpu"]
    assert main([*asked, "--offload", "weights", "--disk", str(tmp_path), "--host-memory", "0.000001"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--host-memory 1e-06 has no room for the " in err
    assert err.endswith("; raise it\n")


def test_a_sequence_that_is_too_long_is_told_by_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments(tmp_path, "hello", "--gpu-memory", "0.00001")
    given[given.index("6")] = "50"
    assert main(given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "a smaller --max-new-tokens" in err


def test_what_is_refused_in_a_text_of_that_name_is_told_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only where the parameter is meant: not in the name of a folder."""
    given = arguments(tmp_path, "hello")
    given[given.index("--model") + 1] = str(tmp_path / "max_new_tokens")
    assert main(given) == 2
    assert "max_new_tokens'" in capsys.readouterr().err


def test_a_prompt_with_more_new_tokens_than_positions_is_told_by_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments(tmp_path, "hello")
    given[given.index("6")] = "64"
    assert main(given) == 2
    assert capsys.readouterr().err.endswith("; shorten the prompt or lower --max-new-tokens\n")
    with pytest.raises(UserError, match=r"lower max_new_tokens$"):
        LLM(given[given.index("--model") + 1], weights="dummy", tokenizer="byte", device="cpu").generate("hello", SamplingParams(64))
