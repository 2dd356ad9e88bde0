"""Checkpoints that others have put in few bits: measured as what they are, and only by what runs them so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferometer import LLM
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.cli.main import main
from inferometer.errors import UserError
from tiny_models import tiny_model

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"},
        }
    },
}


def asked(folder: Path, config: dict[str, Any], **changes: Any) -> BenchRequest:
    # Random weights in the checkpoint's format: what is asked here is decided by its config.json.
    model = tiny_model(folder, "llama", quantization_config=config)
    values: dict[str, Any] = {
        "model": str(model), "weights": "dummy", "dtype": "float32", "device": "cpu", "batch_sizes": (1,), "sequence_length": 8,
        "decode_length": 3, "runs": 1, "energy": False,
    }  # fmt: skip
    return BenchRequest(**{**values, **changes})


@pytest.mark.parametrize(
    ("config", "name", "kinds"),
    [
        (GPTQ, "gptq-int4-g32", {("int4", 32, True, "wide")}),
        (AWQ, "awq-int4-g32", {("int4", 32, True, "wide")}),
        (W8A8, "compressed-tensors-w8a8", {("int8", None, False, "int8")}),
    ],
)
def test_a_case_is_named_and_counted_by_what_the_engine_holds(
    tmp_path: Path, config: dict[str, Any], name: str, kinds: set[tuple[Any, ...]]
) -> None:
    (record,) = benchmark(asked(tmp_path, config), lambda record: None)
    assert (record.status, record.quantize) == ("ok", name), record.evidence
    assert record.predicted is not None
    held = LLM(asked(tmp_path, config).model, weights="dummy", device="cpu", dtype="float32", quantize=name).model
    assert {(weight.kind, weight.group, weight.zero is not None, weight.activations) for weight in held.quantised.values()} == kinds
    assert record.sizes is not None
    assert record.sizes["model"] == held.weight_bytes


@pytest.mark.parametrize("backend", ["hf", "hf-compile", "deepspeed"])
def test_a_stack_that_would_widen_the_weights_is_not_timed_beside_one_that_does_not(tmp_path: Path, backend: str) -> None:
    with pytest.raises(UserError, match=rf"tiny-llama's weights are in few bits of gptq, which --backend {backend} would measure widened"):
        benchmark(asked(tmp_path, GPTQ, backends=("native", backend)), lambda record: None)


@pytest.mark.parametrize("form", ["int8", "int4-g64"])
def test_weights_that_this_package_rounded_are_not_rounded_again_by_another(tmp_path: Path, form: str) -> None:
    """int8 is also what the other stack's own format is called."""
    ours = {"quant_method": "inferometer", "format": form, "version": 2}
    found = benchmark(asked(tmp_path, ours), lambda record: None)
    assert [(record.status, record.quantize) for record in found] == [("ok", form)]
    with pytest.raises(
        UserError, match=rf"tiny-llama's weights are in few bits of {form} from inferometer quantize, which --backend hf would"
    ):
        benchmark(asked(tmp_path, ours, backends=("native", "hf")), lambda record: None)


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_another_format_than_the_checkpoints_is_refused(tmp_path: Path, backend: str) -> None:
    with pytest.raises(UserError, match="--quantize int8: the checkpoint is in awq already"):
        benchmark(asked(tmp_path, AWQ, backends=(backend,), quantize="int8"), lambda record: None)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(tmp_path, "llama", quantization_config=GPTQ)
    assert main(["bench", str(model), "--weights", "dummy", "--device", "cpu", "--dtype", "float32", "--backend", "hf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "use --backend native, or the checkpoint before quantisation" in err


def test_a_plain_checkpoint_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--quantize gptq-int4-g32: the checkpoint is not stored so"):
        benchmark(asked(tmp_path, {}, quantize="gptq-int4-g32"), lambda record: None)
