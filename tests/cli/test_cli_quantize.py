"""`inferometer quantize` and `inferometer quality` on a tiny model with weights."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from inferometer import LLM, SamplingParams
from inferometer.cli.main import main
from inferometer.cli.quality import read_text
from inferometer.engine.quality import quality
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.nn.dummy import DummySource
from killed_writers import LEFT, leave, writing
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of bytes, with a tokenizer."""
    folder = tiny_model(tmp_path_factory.mktemp("model"), "llama", hidden_size=64, intermediate_size=96, eos_token_id=0)
    spec = describe(str(folder), config_only=True).spec
    source = DummySource(spec, family("llama"), seed=2)
    save_file({name: source.read(name, "cpu", torch.float32) * 6 for name in source.tensors()}, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<end>": 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Ships come in with the tide, and leave with it. " * 12)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("target", ["nowhere", "empty", "link"])
def test_a_link_is_refused_before_anything_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(target)
    err = refused(capsys, "quantize", tmp_path / "no model", "--quantize", "int8", "-o", tmp_path / "link")
    assert err == f"inferometer: error: -o {tmp_path / 'link'} is a link; name the folder itself, or remove it\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link"]


@pytest.mark.parametrize("calibrate", [False, True])
def test_a_folder_runs_like_the_model_it_was_made_from(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], calibrate: bool
) -> None:
    out = tmp_path / "out"
    more = ["--calibrate", text, "--device", "cpu"] if calibrate else []
    said = answer(capsys, "quantize", model, "--quantize", "int4-g32", "-o", out, "--json", *more)
    assert said["path"] == str(out)
    assert said["bytes"] == sum(path.stat().st_size for path in out.iterdir())
    assert said["calibration_tokens"] == (len(text.read_bytes()) if calibrate else None)  # of a byte each, in fewer pieces than 32
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} == {path.name for path in out.iterdir()}
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    found = LLM(out, device="cpu", dtype="float32", gpu_memory=0.1).generate("Ships come", params)[0]
    if not calibrate:
        wanted = LLM(model, device="cpu", dtype="float32", quantize="int4-g32", gpu_memory=0.1).generate("Ships come", params)[0]
        assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert str(out) in refused(capsys, "quantize", model, "--quantize", "int8", "-o", out)
    assert "in few bits" in refused(capsys, "quantize", out, "--quantize", "int8", "-o", tmp_path / "other")
    # Against what it was made from, and in its own right the same as itself.
    worse = answer(capsys, "quality", out, "--reference", model, "--file", text, "--device", "cpu", "--json")
    assert worse["kl_divergence"] > 0
    same = answer(capsys, "quality", out, "--reference", out, "--file", text, "--device", "cpu", "--json")
    assert same["kl_divergence"] == pytest.approx(0, abs=1e-7)
    assert same["top1_agreement"] == 1


def test_a_folder_in_few_bits_is_priced_as_such(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "int8"
    assert main(["quantize", str(model), "--quantize", "int8", "-o", str(folder)]) == 0
    capsys.readouterr()
    asked = "--device", "l4", "--dtype", "float16", "--sequence-length", "8", "--decode-length", "2", "--json"
    found = answer(capsys, "estimate", folder, *asked)
    assert found["peak_memory_bytes"] == answer(capsys, "estimate", model, "--quantize", "int8", *asked)["peak_memory_bytes"]
    assert found["peak_memory_bytes"] != answer(capsys, "estimate", model, *asked)["peak_memory_bytes"]
    assert "is in int8 already" in refused(capsys, "estimate", folder, "--quantize", "int4", *asked)
    sizes = {}
    for name, flags in ("folder", (folder,)), ("rounded", (model, "--quantize", "int8")), ("plain", (model,)):
        out = tmp_path / f"{name}.jsonl"
        case = "--batch-size", "1", "--sequence-length", "8", "--decode-length", "2", "--runs", "1", "--no-energy", "--output"
        assert main(["bench", *map(str, flags), *case, str(out)]) == 0
        record = json.loads(out.read_text())
        sizes[name] = record["sizes"]["model"], record["quantize"]
    assert sizes["folder"] == sizes["rounded"] != sizes["plain"]


def test_the_command_that_verifies_a_folder_in_few_bits_runs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads that folder's weights: random ones are in no format that a checkpoint is stored in."""
    folder = tmp_path / "in 8 bits"
    assert main(["quantize", str(model), "--quantize", "int8", "-o", str(folder)]) == 0
    capsys.readouterr()
    asked = "--device", "cpu", "--dtype", "float32", "--sequence-length", "8", "--decode-length", "2"
    found = answer(capsys, "estimate", folder, *asked, "--json")
    assert found["unmeasured"] is None
    program, *command = shlex.split(found["verify"])
    assert (program, command[:2], "dummy" in command) == ("inferometer", ["bench", str(folder)], False)
    assert main([*command, "--device", "cpu", "--runs", "1", "--no-energy"]) == 0
    capsys.readouterr()
    # transformers is filled with what the numbers in few bits mean, which is another case.
    hf = answer(capsys, "estimate", folder, *asked, "--stack", "hf-eager", "--json")
    assert (hf["verify"], hf["unmeasured"]) == (None, "--backend hf widens a checkpoint that is in few bits; use --stack native")


def test_quality_is_that_of_a_float64_evaluation(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--file", text, "--device", "cpu", "--sequence-length", 50, "--json")
    found = answer(capsys, "quality", model, "--quantize", "int4-g32", *options)
    plain, narrow = (LLM(model, device="cpu", dtype="float32", quantize=quantize) for quantize in (None, "int4-g32"))
    assert plain.tokenizer is not None
    tokens = plain.tokenizer.encode(text.read_text())
    losses: list[list[float]] = [[], []]
    divergences, agreed = [], []
    for start in range(0, len(tokens), 50):
        part = torch.tensor(tokens[start : start + 50])
        p, q = (llm.model.logits(llm.hidden_states(part.tolist())).double().log_softmax(-1)[:-1] for llm in (plain, narrow))
        for kept, scores in zip(losses, (q, p), strict=True):
            kept += (-scores.gather(1, part[1:, None])[:, 0]).tolist()
        divergences += (p.exp() * (p - q)).sum(1).tolist()
        agreed += (p.argmax(1) == q.argmax(1)).tolist()
    count = len(divergences)
    assert found["tokens"] == count
    assert found["perplexity"] == pytest.approx(torch.tensor(losses[0]).mean().exp().item(), rel=1e-5)
    assert found["reference_perplexity"] == pytest.approx(torch.tensor(losses[1]).mean().exp().item(), rel=1e-5)
    assert found["kl_divergence"] == pytest.approx(sum(divergences) / count, rel=1e-3, abs=1e-6)
    assert found["top1_agreement"] == pytest.approx(sum(agreed) / count)


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_text("a text", encoding="utf-8-sig")
    assert read_text("--file", tmp_path / "marked.txt") == "a text"


@pytest.mark.parametrize(("length", "remark"), [(2, "only one token was"), (32, "only 31 tokens were"), (33, None)])
def test_quality_on_a_few_tokens_is_remarked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], length: int, remark: str | None
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a" * length)
    assert main(["quality", str(model), "--reference", str(model), "--file", str(text), "--device", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["tokens"] == length - 1
    wanted = None if remark is None else f"inferometer: {remark} predicted, which says nothing of a format; give a longer text"
    assert [line for line in err.splitlines() if "predicted" in line] == ([] if wanted is None else [wanted])


def test_what_takes_long_is_told_once_where_no_bar_shows_it(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["quality", str(model), "--reference", str(model), "--file", str(text), "--device", "cpu", "--sequence-length", "50"]
    assert main(command) == 0
    assert "more" not in capsys.readouterr().err
    monkeypatch.setattr("inferometer.cli.quality.LONG_S", 0.0)
    assert main(command) == 0
    assert len(re.findall(r"^inferometer: \d+ tokens in windows of 50 take about \d+ s more$", capsys.readouterr().err, re.MULTILINE)) == 1


@pytest.mark.parametrize("window", [2, 13, 61, 64])
def test_progress_goes_by_pieces_of_a_window_and_ends_at_the_last_token(model: Path, window: int) -> None:
    llm = LLM(model, device="cpu", dtype="float32")
    done: list[int] = []
    quality(llm, llm, list(range(1, 144)), window, done.append)
    assert sum(done) == 143
    assert min(done) >= 0
    assert max(done) <= max(2, window / 2)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_quality_of_a_cache(model: Path, text: Path, capsys: pytest.CaptureFixture[str], kv_dtype: str) -> None:
    found = answer(capsys, "quality", model, "--kv-dtype", kv_dtype, "--file", text, "--device", "cpu", "--json")
    assert found["kv_dtype"] == kv_dtype
    assert 0 < found["kl_divergence"] < {"int8": 0.5, "fp8": 1.5}[kv_dtype]  # random weights make much of little


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("quality", "MODEL", "--file", "TEXT"), "--quantize"),
        (("quality", "MODEL", "--quantize", "int3", "--file", "TEXT"), "int3"),
        (("quality", "MODEL", "--quantize", "int8", "--file", "missing.txt"), "missing.txt"),
        (("quality", "MODEL", "--quantize", "int8", "--file", "TEXT", "--sequence-length", "100000"), "--sequence-length"),
        (("quantize", "MODEL", "--quantize", "gptq", "-o", "out"), "gptq"),
        (("quantize", "MODEL", "--quantize", "int8"), "-o"),
        (("quantize", "MODEL", "--quantize", "int8", "-o", "out", "--dtype", "int4"), "--dtype"),
        (("quantize", "MODEL", "--quantize", "int8", "-o", "out", "--calibrate", "missing.txt"), "--calibrate"),
        (("quantize", "MODEL", "--quantize", "int8", "-o", "/proc/out"), "/proc/out"),
        (("generate", "x", "--model", "MODEL", "--quantize", "nothing"), "nothing"),
        (("generate", "x", "--model", "MODEL", "--kv-dtype", "nothing"), "--kv-dtype"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    model: Path, text: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [{"MODEL": str(model), "TEXT": str(text)}.get(each, each) for each in arguments]
    assert said in refused(capsys, *given)


def test_generate_takes_formats(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", model, "--raw", "--max-new-tokens", 4, "--device", "cpu", "--json")
    found = answer(capsys, "generate", "Ships", "--quantize", "int8", "--kv-dtype", "int8", *options)
    assert len(found["completions"][0]["token_ids"]) <= 4


def test_what_would_do_nothing_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "quantize", model, "--quantize", "int8", "--windows", 4, "-o", tmp_path / "out")
    assert "--windows 4 says how much of a text to take; add --calibrate" in said
    assert "-o must name a folder" in refused(capsys, "quantize", model, "--quantize", "int8", "-o", "")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_run_has_left_goes_with_the_next_to_the_same_folder(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    other = leave(tmp_path / "other")
    leave(out)
    assert main(["quantize", str(model), "--quantize", "int8", "-o", str(out)]) == 0
    assert capsys.readouterr().err == f"inferometer: removed {LEFT} that a run which was killed had left beside {out}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"out", other.parent.name}


def test_a_folder_that_another_run_is_writing_is_refused_before_anything_is_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with writing(out) as alive:
        said = refused(capsys, "quantize", tmp_path / "no model", "--quantize", "int8", "-o", out)
        assert said == f"inferometer: error: -o {out} is being written by another run; name another folder, or wait for that run to end\n"
        assert (alive / "a" / "b").is_file()
        assert main(["quantize", str(model), "--quantize", "int8", "-o", str(tmp_path / "beside")]) == 0
    assert main(["quantize", str(model), "--quantize", "int8", "-o", str(out)]) == 0  # it was killed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "out"]


def test_a_run_that_calibrates_is_writing_already(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferometer.engine import quantize as module

    out, calibrated, said = tmp_path / "out", module._calibrated, []

    def second(*arguments: Any) -> Any:
        said.append(refused(capsys, "quantize", model, "--quantize", "int8", "-o", out))
        return calibrated(*arguments)

    monkeypatch.setattr(module, "_calibrated", second)
    flags = ["--calibrate", str(text), "--device", "cpu", "--windows", "1"]
    assert main(["quantize", str(model), "--quantize", "int4-g32", "-o", str(out), *flags]) == 0
    assert [line.split(" is ")[-1][:31] for line in said] == ["being written by another run; n"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_text_of_less_than_one_piece_does_not_calibrate(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A piece is as long as this model's context, of 64 tokens; one of the text is a byte."""
    asked = ["quantize", str(model), "--quantize", "int4-g32", "--device", "cpu", "-o", str(tmp_path / "out"), "--calibrate"]
    text = tmp_path / "text.txt"
    for length, has in (0, "0 tokens"), (1, "1 token"), (63, "63 tokens"):
        text.write_text("a" * length)
        assert f"the text has {has}, and at least 64 are needed; give a longer one" in refused(capsys, *asked, text)
        assert not (tmp_path / "out").exists()
    text.write_text("a" * 150)
    assert main([*asked, str(text), "--windows", "2"]) == 0
    assert capsys.readouterr().out.endswith(", calibrated on 128 tokens\n")


@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"])
def test_what_would_not_load_is_not_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tensor: str) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    tensors[tensor].view(-1)[3] = float("nan")
    if tensor.startswith("model.embed"):  # which is rounded where it is the head
        tensors.pop("lm_head.weight", None)
        config = json.loads((model / "config.json").read_text())
        (damaged / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    save_file(tensors, damaged / "model.safetensors")
    said = refused(capsys, "quantize", damaged, "--quantize", "int4-g64", "-o", tmp_path / "out")
    assert f"the tensor {tensor} holds numbers that are not finite" in said
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
