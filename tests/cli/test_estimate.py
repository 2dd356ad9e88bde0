"""`inferometer estimate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.bench.backends.entries import ENTRIES
from inferometer.cli import verification
from inferometer.cli.main import main
from inferometer.hardware.detect import Machine
from inferometer.hardware.host import Host
from inferometer.model.presets import preset


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "opt-1.3b", "--device", "h100-sxm", "--batch-size", "8", "--decode-length", "32", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["prefill_ms"] > found["bound"]["prefill_ms"] > 0
    assert found["decode_token_ms"] > found["bound"]["decode_token_ms"] > 0
    assert (found["model"], found["device"], found["batch_size"], found["decode_length"]) == ("opt-1.3b", "h100-sxm", 8, 32)


def test_text_puts_each_time_beside_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "bloomz-7b1", "--device", "a100-sxm-80gb", "--batch-size", "4", "--sequence-length", "1024"]) == 0
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "bloomz-7b1 on NVIDIA A100 SXM4 80GB" in out
    for phase, binds in (("prefill", "compute"), ("decode (token)", "memory")):
        assert " ms" in lines[phase]
        assert binds in lines[phase]
    for use in ("weights", "KV cache", "activations", "logits", "context", "needed", "available"):
        assert use in lines
    assert "largest batch" in out
    assert "basis: datasheet" in out
    assert "\x1b" not in out


def test_the_defaults_run_the_embedded_model_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "smollm2-135m"
    assert found["decode_token_ms"] > 0


def test_document_001_by_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch-size", "16", "--sequence-length", "1024", "--forward-only", "--loss", "--stack", "torch-eager-forward"]
    assert main(["estimate", "facebook/opt-6.7b", "--device", "rtx-a5000", "--dtype", "fp16", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_memory_bytes"] / 2**30 == pytest.approx(15.48, rel=0.005)
    assert found["prefill_ms"] is None
    assert found["forward_only"] is True


def test_a_host_that_is_in_no_published_time_is_said_not_to_be_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "opt-1.3b", "--device", "h200", "--batch-size", "1", "--sequence-length", "128", "--forward-only", "--stack"]
    for stack, said in (("torch-eager-forward", "the host, not counted"), ("hf-eager", "the host, beside")):
        assert main([*asked, stack]) == 0
        assert next(line for line in capsys.readouterr().out.splitlines() if line.startswith("the host")).startswith(f"{said}  ")


def test_what_does_not_fit_ends_well_unless_fit_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "llama-2-70b", "--device", "rtx-4090"]
    assert main(asked) == 0
    assert "does not fit: 105" in capsys.readouterr().out
    assert main([*asked, "--require-fit", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is False
    assert err.count("\n") == 1
    assert "--require-fit" in err
    assert "--tensor-parallel 8" in err
    assert main([*asked, "--require-fit", "--gpus", "8"]) == 0


def test_what_the_host_link_brings_stands_beside_the_ops(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "opt-6.7b", "--device", "rtx-3080", "--batch-size", "8"]
    assert main(asked) == 0
    assert "\nhost link, beside " not in capsys.readouterr().out
    assert main([*asked, "--offload", "weights"]) == 0
    assert "\nhost link, beside " in capsys.readouterr().out
    for offload in ("weights", "pages"):
        assert main([*asked, "--offload", offload, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        for phase in ("prefill_ms", "decode_token_ms"):
            parts = found["breakdown"][phase]
            assert parts["host_link"] > parts["host_link_bound"] > 0
            # Beside each other: the slowest decides.
            assert found[phase] == pytest.approx(max(sum(parts["expected"].values()), parts["host"], parts["host_link"]), rel=1e-3)
            assert found["bound"][phase] == pytest.approx(max(sum(parts["bound"].values()), parts["host_link_bound"]), rel=1e-3)


def test_gpus_are_all_used_unless_shards_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-2-70b", "--device", "a100-sxm-80gb", "--gpus", "4", "--link", "nvswitch", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tensor_parallel"], found["gpus"], found["link"]) == (4, 4, "nvlink3")


def test_ways_to_run_have_flags_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["estimate", "opt-6.7b", "--device", "a100-sxm-80gb", "--batch-size", "32", "--json"]
    found = []
    for flags in (
        ["--parallel", "layers", "--gpus", "4"],
        ["--admission", "diagonal", "--group-size", "8", "--offload", "weights:0.5"],
        ["--stack", "vllm", "--mixed-tokens", "256"],
    ):
        assert main([*base, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    layers, groups, mixed = found
    assert (layers["parallel"], layers["tensor_parallel"], layers["gpus"]) == ("layers", 1, 4)
    assert (groups["admission"], groups["group_size"], groups["offload"]) == ("diagonal", 8, "weights:0.5")
    assert mixed["mixed_step_ms"] > mixed["decode_token_ms"]
    assert (layers["verify"], layers["unmeasured"]) == (
        None, "--parallel layers is estimated only: GPUs share a model by --tensor-parallel"
    )  # fmt: skip
    assert groups["verify"].startswith("inferometer bench opt-6.7b ")
    assert mixed["verify"].startswith("vllm bench ")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--quantize", "gptq"], "--quantize gptq is not run by --backend native; use --quantize int8 or "),
        (["--stack", "hf-eager", "--tensor-parallel", "2"], "--tensor-parallel 2 is not run by --backend hf; use "),
        (["--stack", "hf-eager", "--kv-dtype", "fp8"], "--kv-dtype fp8 is not run by --backend hf; "),
        (["--stack", "hf-compile", "--quantize", "int8"], "--quantize int8 is not run by --backend hf-compile; "),
        (["--decode-length", "1", "--batch-size", "20000"], "it holds the pages of a whole batch at once, here 351.56 GiB, of which a "),
    ],
)
def test_a_case_that_bench_refuses_has_its_reason_in_place_of_a_command(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["estimate", "opt-125m", "--device", "h200", *flags]
    assert main(asked) == 0
    assert f"\nverify: no `inferometer bench` measures this case: {reason}" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verify"] is None
    assert found["unmeasured"].startswith(reason)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_processor_without_such_instructions_has_no_command_of_bench(
    dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Machine(host=Host(model="Plain", vendor="Nobody", cores=2, flags=("avx2",), memory_bytes=None, cache_bytes=None), gpus=())
    monkeypatch.setattr(verification, "detect", lambda: plain)
    asked = ["estimate", "opt-125m", "--device", "cpu", "--dtype"]
    assert main([*asked, dtype]) == 0
    assert f"case: --dtype {dtype}: this CPU has no {dtype} matrix instructions; use --dtype float32" in capsys.readouterr().out
    assert main([*asked, "float32"]) == 0
    assert "\nverify: inferometer bench opt-125m " in capsys.readouterr().out


def test_a_model_that_is_not_run_has_no_command_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "mixtral-8x7b", "--device", "h200"]) == 0
    assert "measures this case: mixtral-8x7b is estimated only: mixtures of experts cannot be run" in capsys.readouterr().out


@pytest.mark.parametrize("stack", ["native", "hf-eager", "hf-compile"])
def test_a_stack_that_bench_runs_has_a_command_that_it_takes(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bench's own backend of that stack."""
    assert main(["estimate", "opt-125m", "--device", "h200", "--stack", stack, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unmeasured"] is None
    (backend,) = [each.name for each in ENTRIES if each.stack == stack]
    assert f" --backend {backend} " in found["verify"]


def test_throughput_of_groups_is_that_of_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "opt-1.3b", "--device", "h100-sxm", "--batch-size", "64", "--decode-length", "32", "--admission", "row"]
    assert main([*asked, "--json"]) == 0
    whole_ms = json.loads(capsys.readouterr().out)["total_ms"]
    assert main(asked) == 0
    assert f"throughput: {64 * 32 / whole_ms * 1e3:,.1f} tokens/s over the whole run\n" in capsys.readouterr().out


def test_one_token_in_groups_is_answered_for_any_batch(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "opt-1.3b", "--device", "h200", "--admission", "diagonal", "--group-size", "8", "--decode-length", "1"]
    assert main(asked) == 0
    assert "the largest batch of these lengths is not bounded by memory, the longest prompts of this batch " in capsys.readouterr().out


def test_what_would_fit_is_one_line_that_names_a_format_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-70b", "--device", "h100-sxm", "--batch-size", "32", "--sequence-length", "2048"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("does not fit")]
    _, _, ways = line.partition("it would fit ")
    assert ways.startswith("with --quantize int4-g64, with --tensor-parallel 2 --gpus 2, or at the speed of the host link with --offload w")


def test_a_model_that_is_only_estimated_has_an_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known = preset("mixtral-8x7b")
    assert known is not None
    (tmp_path / "config.json").write_text(json.dumps(dict(known.config)))
    for model in ("mixtral-8x7b", str(tmp_path)):
        assert main(["estimate", model, "--device", "h200", "--stack", "vllm"]) == 0
        out = capsys.readouterr().out
        assert "verify: vllm bench" in out
        assert "J/token" in out


def test_an_encoder_is_one_forward(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "bert-base", "--device", "t4"]) == 0
    assert "forward" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["opt-1.3b", "--device", "h100"], "did you mean h100-sxm or h100-pcie"),
        (["opt-1.3b", "--device", "t4", "--stack", "hf"], "--stack hf is unknown"),
        (["opt-1.3b", "--device", "t4", "--batch-size", "0"], "--batch-size"),
        (["opt-1.3b", "--device", "t4", "--sequence-length", "4000"], "--sequence-length 4000"),
        (["opt-1.3b", "--device", "t4", "--mixed-tokens", "2049"], "--mixed-tokens 2049 is too long: opt-1.3b has 2048 positions"),
        (["opt-1.3b", "--device", "t4", "--loss"], "--loss goes with --forward-only"),
        (["opt-1.3b", "--device", "t4", "--forward-only", "--decode-length", "4"], "which --forward-only does not; leave it out"),
        (["bert-base", "--device", "t4", "--decode-length", "4"], "bert-base is an encoder; leave it out"),
        (["opt-1.3b", "--device", ""], "'': no such device"),
    ],
)
def test_wrong_usage_is_one_line_and_two(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_device_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "twice.toml"
    path.write_text('base = "h100-sxm"\nmemory_bandwidth_gb_s = 6700\n')
    times = []
    for device in ("h100-sxm", str(path)):
        assert main(["estimate", "llama-2-7b", "--device", device, "--json"]) == 0
        times.append(json.loads(capsys.readouterr().out)["bound"]["decode_token_ms"])
    assert times[1] == pytest.approx(times[0] / 2, rel=0.02)


def test_fewer_devices_that_are_faster_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A bridge joins two H100s in PCIe slots; four talk through the host. What fewer have no memory for is none of their times."""

    def asked(*flags: str, batch: int = 8) -> str:
        assert main(["estimate", "--sequence-length", "1984", "--batch-size", str(batch), *flags]) == 0
        return capsys.readouterr().out

    bridged = asked("llama-3.1-8b", "--device", "h100-pcie", "--gpus", "2")
    assert "faster on" not in bridged
    prefill = next(line.split()[1] for line in bridged.splitlines() if line.startswith("prefill"))
    through_host = asked("llama-3.1-8b", "--device", "h100-pcie", "--gpus", "4")
    assert f"\nprefill is faster on 2 over NVLink 4: {prefill} ms\n" in through_host
    assert "decode (token) is faster" not in through_host
    assert "faster on" not in asked("llama-3.1-8b", "--device", "h100-sxm", "--gpus", "8", "--tensor-parallel", "8")
    assert "prefill is faster on 2" in asked("llama-3.1-70b", "--device", "h100-pcie", "--gpus", "4")
    assert "prefill is faster on" not in asked("llama-3.1-70b", "--device", "h100-pcie", "--gpus", "4", batch=64)
    assert "\nprefill is faster on 1: " in asked("opt-125m", "--device", "rtx-4090", "--gpus", "4", "--link", "pcie4")
    two, four = (json.loads(asked("llama-3.1-8b", "--device", "h100-pcie", "--gpus", gpus, "--json")) for gpus in ("2", "4"))
    assert two["faster_on_fewer"] == {}
    assert four["faster_on_fewer"] == {"prefill_ms": {"devices": 2, "ms": two["prefill_ms"]}}


ROWS = ["estimate", "llama-3.1-8b", "--sequence-length", "64"]


@pytest.mark.parametrize(
    ("device", "batch", "form", "slower"),
    [("h100-sxm", 128, "int8", True), ("h100-sxm", 32, "int8", False), ("l4", 128, "int8", True), ("l4", 1, "int4", False)],
)
def test_phases_that_weights_in_few_bits_make_slower_are_named(
    device: str, batch: int, form: str, slower: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of many rows is, and a prompt's by how long it is."""

    def answer(*flags: str) -> str:
        assert main([*ROWS, "--device", device, "--batch-size", str(batch), *flags]) == 0
        return capsys.readouterr().out

    rounded, plain = (json.loads(answer("--json", *flags)) for flags in (("--quantize", form), ()))
    faster = {phase: plain[phase] for phase in ("prefill_ms", "decode_token_ms") if plain[phase] < rounded[phase] / 1.02}
    assert ("decode_token_ms" in faster) == slower
    assert (rounded["faster_unquantized"], plain["faster_unquantized"]) == (faster, {})
    as_they_are = {line.split("  ")[0]: line.split("  ")[1:] for line in answer().splitlines()}
    assert not any("faster with" in line for line in as_they_are)
    times = {name: next(filter(None, as_they_are[name])).strip() for name in ("prefill", "decode (token)")}
    told = [line for line in answer("--quantize", form).splitlines() if "faster with" in line]
    names = {"prefill_ms": "prefill", "decode_token_ms": "decode (token)"}
    assert told == [f"{names[phase]} is faster with float16 weights: {times[names[phase]]}" for phase in faster]


def test_weights_that_would_not_fit_or_are_stored_in_few_bits_are_no_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def faster(*flags: str) -> dict[str, float]:
        assert main([*flags, "--json"]) == 0
        found: dict[str, float] = json.loads(capsys.readouterr().out)["faster_unquantized"]
        return found

    asked = [*ROWS, "--batch-size", "128"]
    small = tmp_path / "small.toml"
    small.write_text('base = "h100-sxm"\nmemory_gib = 14\n')
    assert faster(*asked, "--device", "h100-sxm", "--quantize", "int8") != {}
    assert faster(*asked, "--device", str(small), "--quantize", "int8") == {}
    stored = tmp_path / "stored"
    stored.mkdir()
    config = preset("llama-3.1-8b")
    assert config is not None
    form = {"quant_method": "inferometer", "version": 2, "format": "int8"}
    (stored / "config.json").write_text(json.dumps({**config.config, "quantization_config": form}))
    assert faster("estimate", str(stored), *asked[2:], "--device", "h100-sxm") == {}
