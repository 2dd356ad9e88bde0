"""The estimate as users call it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import cycle
from math import isfinite
from typing import Any

import pytest

from inferometer.bench.records.record import Bound, Predicted
from inferometer.errors import ModelError, UserError
from inferometer.estimate import Estimate, estimate
from inferometer.estimate.stack import STACKS
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import find_device, slugs
from inferometer.model.presets import PRESETS, preset

TIMES = ("forward_ms", "prefill_ms", "decode_token_ms")


def _estimate(model: str = "opt-1.3b", device: str = "a100-sxm-80gb", **changes: object) -> Estimate:
    asked: dict[str, object] = {"batch_size": 4, "sequence_length": 128, "decode_length": 16, "calibration": None}
    return estimate(model, device, **(asked | changes))  # type: ignore[arg-type]


# A third of the models on each device, another third on the next; the rest is slow.
@pytest.mark.parametrize("thirds", [(0,), pytest.param((1, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("slug", slugs())
def test_every_preset_answers_on_every_device(slug: str, thirds: tuple[int, ...]) -> None:
    device = find_device(slug)
    first = list(slugs()).index(slug)
    # Each model with one stack and each stack on every device: all pairs of both would be thousands that tell nothing more.
    for place, (name, stack) in enumerate(zip(PRESETS, cycle(STACKS), strict=False)):
        if (place + first) % 3 not in thirds:
            continue
        found = preset(name)
        assert found is not None
        forward = stack == "torch-eager-forward"
        each = estimate(
            found.spec(), device, batch_size=2, sequence_length=64, decode_length=8, stack=stack, forward_only=forward, calibration=None
        )
        assert each.phases
        for phase, part in each.phases.items():
            low, high = each.interval[phase]
            assert 0 < part.bound.ms < part.cost.ms < high
            assert part.bound.ms <= low < part.cost.ms
            assert isfinite(part.cost.ms)
        assert each.peak_memory_bytes > 0
        assert each.fits == (each.short_by_bytes is None)
        assert each.fits == (each.memory.device_bytes <= device.usable_memory_bytes)
        assert each.largest_batch is not None
        assert each.fits == (each.largest_batch >= 2)
        json.dumps(each.to_dict(), allow_nan=False)


def test_the_document_has_the_contracts_fields() -> None:
    found = _estimate().to_dict()
    assert {"prefill_ms", "decode_token_ms", "peak_memory_bytes", "j_per_token", "bound", "breakdown", "interval", "basis"} <= set(found)
    assert found["forward_ms"] is None
    assert found["bound"]["basis"] == "datasheet"
    assert found["bound"]["binds"] == {"prefill_ms": "compute", "decode_token_ms": "memory"}
    assert found == json.loads(json.dumps(found))


def test_a_record_takes_the_bound_and_the_prediction_as_they_are() -> None:
    found = _estimate()
    assert Bound(**found.bound).decode_token_ms == found.bound["decode_token_ms"]
    assert Predicted(**found.predicted).peak_memory_bytes == found.peak_memory_bytes


def test_one_token_has_no_decode_steps_and_an_encoder_no_tokens() -> None:
    assert _estimate(decode_length=1).decode_token_ms is None
    found = _estimate("bert-base")
    assert found.prefill_ms is None
    assert found.forward_ms is not None
    assert found.memory.kv == 0


def test_the_decode_step_is_the_mean_over_the_growing_context() -> None:
    whole = _estimate(batch_size=64, sequence_length=100, decode_length=41)
    singles = [_estimate(batch_size=64, sequence_length=100 + step, decode_length=2) for step in range(40)]
    assert whole.bound["decode_token_ms"] == pytest.approx(sum(each.bound["decode_token_ms"] for each in singles) / 40, rel=1e-9)
    assert whole.decode_token_ms == pytest.approx(sum(each.decode_token_ms or 0 for each in singles) / 40, rel=1e-3)


def test_shards_are_faster_and_talk() -> None:
    one, four = _estimate("llama-2-70b", "h200"), _estimate("llama-2-70b", "h200", tensor_parallel=4)
    assert one.decode_token_ms is not None
    assert four.decode_token_ms is not None
    assert four.decode_token_ms < one.decode_token_ms
    assert "collective" in four.phases["decode_token_ms"].cost.kinds
    assert four.to_dict()["link"] == "nvlink4"


def test_energy_is_between_idle_and_the_limit() -> None:
    found = _estimate()
    prefill, step, joules = found.prefill_ms, found.decode_token_ms, found.j_per_token
    assert prefill is not None
    assert step is not None
    assert joules is not None
    watts = joules * 4 * 16 / ((prefill + 15 * step) / 1e3)
    assert 0.3 * 400 <= watts <= 400
    assert _estimate(device="cpu").j_per_token is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stack": "nativ"}, "--stack nativ is unknown; did you mean native"),
        ({"device": "a100"}, "did you mean a100"),
        ({"model": "opt-1.4b"}, "did you mean opt-1.3b"),
        ({"dtype": "float64"}, "--dtype float64 is unknown"),
        ({"device": "t4", "dtype": "bfloat16"}, "--dtype bfloat16: t4"),
        ({"quantize": "int5"}, "--quantize int5 is unknown"),
        ({"kv_dtype": "int3"}, "--kv-dtype int3"),
        ({"tensor_parallel": 3}, "--tensor-parallel 3"),
        ({"tensor_parallel": 4, "gpus": 2}, "--tensor-parallel 4 needs"),
        ({"device": "cpu", "tensor_parallel": 2}, "cpu is one device"),
        ({"link": "ethernet"}, "--link ethernet"),
        ({"sequence_length": 2048}, "--sequence-length 2048"),
        ({"sequence_length": 0}, "--sequence-length must be at least 1"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"decode_length": 0}, "--decode-length must be at least 1"),
        ({"loss": True}, "--loss goes with --forward-only"),
        ({"model": "bert-base", "loss": True}, "--loss is for decoders, and bert-base is an encoder; leave it out"),
        ({"model": "bert-base", "admission": "diagonal"}, "--admission is for decoders, and bert-base"),
        ({"model": "bert-base", "mixed_tokens": 4}, "--mixed-tokens is for decoders, and bert-base"),
        ({"batch_size": 10**400}, "--batch-size: no more than 10^24 is estimated; use a smaller number"),
        ({"mixed_tokens": 10**400}, "--mixed-tokens: no more than 10^24 is estimated"),
        ({"admission": "row", "num_groups": 2}, "in row order it is 1"),
        ({"admission": "diagonal", "batch_size": 10**10}, "--admission diagonal: more than 1,000,000 sweeps; use a smaller --batch-size"),
        ({"admission": "diagonal", "batch_size": 10**6, "num_groups": 1}, "more than 1,000,000 sweeps"),
        ({"device": "cpu", "offload": "weights"}, "weights could come; leave it out"),
        ({"stack": "torch-eager-forward"}, "add --forward-only"),
    ],
)
def test_impossible_requests_are_one_line_that_names_the_flag(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        _estimate(**changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


RANKS_ON_CPU = Calibration(
    device="cpu",
    device_name="a CPU",
    slug="cpu",
    measured_at="2026-01-02T03:04:05+00:00",
    torch_version="2.13.0",
    threads=4,
    seconds_spent=9.5,
    copy_bandwidth_bytes_s=20e9,
    read_bandwidth_bytes_s=20e9,
    matmul_flop_s={"float32": 4e11, "bfloat16": 1e12},
    launch_s=4e-6,
    sums_s={2: {4096: 1e-3, 1 << 20: 5e-3}, 4: {4096: 2e-3, 1 << 20: 1e-2}},
)


def test_a_faster_product_of_ours_is_everybodys_limit_and_nobody_elses_speed() -> None:
    faster = replace(RANKS_ON_CPU, own_matmul_flop_s={"float32": 6e11, "bfloat16": 5e11})
    for dtype, gain, ours in (("float32", 1.5, 1.5), ("bfloat16", 1.0, 0.5)):
        how: dict[str, Any] = {"device": "cpu", "dtype": dtype, "batch_size": 1, "sequence_length": 512}
        for stack in ("native", "hf-eager"):
            before, after = (_estimate(**how, stack=stack, calibration=given).phases["prefill_ms"] for given in (RANKS_ON_CPU, faster))
            assert before.bound.ms / after.bound.ms == pytest.approx(gain, rel=0.05)
            assert before.cost.kinds["gemm"] / after.cost.kinds["gemm"] == pytest.approx(ours if stack == "native" else 1.0, rel=0.05)


def test_ranks_on_a_cpu_are_priced_by_the_sums_that_were_measured() -> None:
    """Their products take as long as one process's, since they share its cores; every sum comes on top."""
    alone = _estimate(device="cpu", calibration=RANKS_ON_CPU, dtype="bfloat16", batch_size=1)
    shared = _estimate(device="cpu", calibration=RANKS_ON_CPU, dtype="bfloat16", batch_size=1, tensor_parallel=2)
    step = shared.phases["decode_token_ms"]
    # Of 4 KiB two a layer and one behind the embedding, a millisecond each, and logits.
    assert step.cost.kinds["collective"] == pytest.approx(2 * shared.request.spec.layers + 2, rel=0.03)
    assert step.cost.kinds["gemm"] == pytest.approx(alone.phases["decode_token_ms"].cost.kinds["gemm"], rel=0.05)
    assert step.bound.ms == pytest.approx(alone.phases["decode_token_ms"].bound.ms, rel=0.05)
    assert shared.request.device.memory_bytes == alone.request.device.memory_bytes // 2
    with pytest.raises(UserError, match=r"--tensor-parallel 8: .* use one from 2 to 4, which were measured"):
        _estimate(device="cpu", calibration=RANKS_ON_CPU, tensor_parallel=8)
    with pytest.raises(UserError, match=r"--tensor-parallel 2: .* `inferometer devices --calibrate --device cpu`"):
        _estimate(device="cpu", calibration=None, tensor_parallel=2)
    # What no calibration would make possible, none is advised for.
    with pytest.raises(UserError, match="--parallel layers: ranks on a CPU cut every layer; leave it out, or name a GPU with --device"):
        _estimate(device="cpu", calibration=RANKS_ON_CPU, gpus=2, parallel="layers")
    with pytest.raises(UserError, match="--gpus 4: cpu is one device; leave it out, or name a GPU with --device"):
        _estimate(device="cpu", calibration=RANKS_ON_CPU, gpus=4, tensor_parallel=2)
    with pytest.raises(UserError, match="--link nvlink4: ranks on a CPU have none"):
        _estimate(device="cpu", calibration=RANKS_ON_CPU, tensor_parallel=2, link="nvlink4")


def test_an_unknown_model_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="did you mean"):
        _estimate("llama-2-8b")


def test_dtypes_by_alias_and_auto() -> None:
    assert _estimate(dtype="fp16").request.formats.dtype == "float16"
    assert _estimate(dtype="bf16").request.formats.dtype == "bfloat16"
    assert _estimate("bloomz-7b1", "t4", dtype="auto").request.formats.dtype == "float16"
    assert _estimate(device="cpu", dtype="auto").request.formats.dtype in ("bfloat16", "float32")


def test_smaller_numbers_decode_faster() -> None:
    def step(**changes: object) -> float:
        return _estimate("llama-2-7b", **changes).bound["decode_token_ms"]  # type: ignore[no-any-return]

    assert step(quantize="int4") < step(quantize="int8") < step() < step(dtype="float32")
    assert step(kv_dtype="int8") < step()


def test_bitsandbytes_is_int8_of_this_engine_and_the_library_elsewhere() -> None:
    ours, engine = (_estimate("opt-6.7b", "h200", stack="native", quantize=name) for name in ("int8", "bitsandbytes"))
    assert (engine.prefill_ms, engine.decode_token_ms, engine.memory) == (ours.prefill_ms, ours.decode_token_ms, ours.memory)
    assert engine.to_dict()["verify"].endswith(" --quantize int8")
    library = _estimate("opt-6.7b", "h200", stack="hf-eager", quantize="bitsandbytes")
    assert library.decode_token_ms is not None
    assert engine.decode_token_ms is not None
    assert library.decode_token_ms > 5 * engine.decode_token_ms
    # Which is the only int8 that transformers has; other stacks' is their own, and fast.
    same = _estimate("opt-6.7b", "h200", stack="hf-eager", quantize="int8")
    assert (same.predicted, same.memory, same.request.quantize) == (library.predicted, library.memory, "bitsandbytes")
    assert same.verify.endswith(" --quantize bitsandbytes")
    others = _estimate("opt-6.7b", "h200", stack="vllm", quantize="int8")
    assert others.decode_token_ms is not None
    assert library.decode_token_ms > 4 * others.decode_token_ms


def test_an_estimate_is_a_few_milliseconds_of_work() -> None:
    """Counted in calls, of which a slow machine makes a thousand in half a millisecond: a clock would tell what else runs there."""
    _estimate("llama-2-70b")
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        _estimate("llama-2-70b", tensor_parallel=8, decode_length=512)
    finally:
        sys.setprofile(None)
    assert calls < 20_000


def test_estimating_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from inferometer.estimate import estimate\n"
        "estimate('llama-2-7b', 'h100-sxm', batch_size=1, sequence_length=10, decode_length=4)\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("forward_only", [False, True])
def test_a_batch_beyond_every_memory_is_answered_at_once(forward_only: bool) -> None:
    """A slip of the finger: the work of equal sequences is counted, not listed."""
    found = _estimate(batch_size=10**22, forward_only=forward_only, decode_length=None if forward_only else 16)
    assert not found.fits
    assert found.largest_batch is not None
    assert found.largest_batch > 0
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("wrong", [0, -3, 1.5, "1", None])
def test_a_count_that_is_none_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(UserError, match="--batch-size must be at least 1, not"):
        _estimate(batch_size=wrong)


def test_what_estimates_are_made_from_is_read_with_the_package() -> None:
    code = "import inferometer.estimate, sys, tomllib; tomllib.loads = None; sys.modules['tomllib'] = None\n"
    code += "found = inferometer.estimate.estimate('opt-1.3b', 'l4', batch_size=1, sequence_length=64, decode_length=8)\n"
    code += "assert found.decode_token_ms > 0"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


def test_offloading_is_for_one_device() -> None:
    with pytest.raises(UserError, match="--offload is for one device, and --tensor-parallel is 2"):
        estimate("opt-6.7b", "a100-sxm-80gb", batch_size=1, sequence_length=64, tensor_parallel=2, offload="weights")


@pytest.mark.parametrize("quantize", ["int8", "int4-g64"])
def test_other_stacks_leave_the_head_in_the_activations_type(quantize: str) -> None:
    ours, kept, theirs = (
        estimate("opt-6.7b", device="h200", quantize=name, stack=stack, batch_size=1, sequence_length=128, decode_length=8)
        for name, stack in ((quantize, "native"), (f"{quantize}-kept-head", "native"), (quantize, "vllm"))
    )
    assert ours.memory.weights < kept.memory.weights == theirs.memory.weights
