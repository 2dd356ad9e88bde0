"""What fits on a device, and what is offered where something does not."""

from __future__ import annotations

import pytest

from inferometer.estimate import Estimate, estimate
from inferometer.hardware.catalogue import find_device

_LONG = {"batch_size": 32, "sequence_length": 2048, "decode_length": 256}


def _estimate(model: str = "opt-1.3b", device: str = "a100-sxm-80gb", **changes: object) -> Estimate:
    asked: dict[str, object] = {"batch_size": 4, "sequence_length": 128, "decode_length": 16, "calibration": None}
    return estimate(model, device, **(asked | changes))  # type: ignore[arg-type]


def test_what_does_not_fit_is_priced_and_the_remedy_holds() -> None:
    found = _estimate("llama-2-70b", "h100-sxm", sequence_length=1000)
    assert not found.fits
    assert found.short_by_bytes == found.memory.device_bytes - find_device("h100-sxm").usable_memory_bytes
    assert found.decode_token_ms is not None
    assert found.remedy == "--quantize int8"
    assert _estimate("llama-2-70b", "h100-sxm", sequence_length=1000, quantize="int8").fits


@pytest.mark.parametrize(
    ("model", "device", "changes", "remedies"),
    [
        ("opt-6.7b", "l4", {"batch_size": 4000}, ["--batch-size"]),
        ("llama-2-7b", "h100-sxm", {"batch_size": 4000}, ["--tensor-parallel --gpus", "--batch-size"]),
        ("opt-13b", "rtx-4090", {}, ["--quantize int8", "--tensor-parallel 2 --gpus 2"]),
        ("opt-13b", "rtx-4090", {"gpus": 2}, ["--quantize int8", "--tensor-parallel 2"]),
        ("llama-2-70b", "rtx-4090", {}, ["--tensor-parallel 8 --gpus 8"]),
        ("llama-2-70b", "rtx-4090", {"dtype": "float32"}, ["--dtype float16 --tensor-parallel 8 --gpus 8"]),
        ("opt-6.7b", "l4", {"dtype": "float32"}, ["--dtype float16", "--tensor-parallel 2 --gpus 2"]),
        ("llama-3.1-70b", "h100-sxm", _LONG, ["--quantize int4-g64", "--tensor-parallel 2 --gpus 2"]),
        ("llama-3.1-70b", "h100-sxm", _LONG | {"batch_size": 2000}, ["--quantize --batch-size", "--tensor-parallel --gpus --batch-size"]),
        ("opt-175b", "rtx-3090", {"batch_size": 400}, ["--quantize --tensor-parallel --gpus --batch-size"]),
    ],
)
def test_remedies_make_it_fit(model: str, device: str, changes: dict[str, object], remedies: list[str]) -> None:
    """Each by itself; of those that are told with a number here, it is that one."""
    found = _estimate(model, device, **changes)
    assert [_form(each, like) for each, like in zip(found.fit.remedies, remedies, strict=True)] == remedies
    assert found.to_dict()["remedies"] == list(found.fit.remedies)
    assert found.to_dict()["remedy"] == found.fit.remedies[0]
    for each in found.fit.remedies:
        assert _estimate(model, device, **(changes | _asked(each))).fits
        if "batch_size" in _asked(each):
            more = _asked(each) | {"batch_size": int(str(_asked(each)["batch_size"])) + 1}
            assert not _estimate(model, device, **(changes | more)).fits


def _form(remedy: str, like: str) -> str:
    """The remedy without its values, if the other is without them."""
    bare = all(word.startswith("--") for word in like.split())
    return " ".join(word for word in remedy.split() if word.startswith("--") or not bare)


def _asked(remedy: str) -> dict[str, object]:
    words = remedy.split()
    given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    return {name: value if name in ("dtype", "quantize") else int(value) for name, value in given.items()}


def test_what_keeps_the_batch_is_the_least_that_does() -> None:
    found = _estimate("llama-3.1-70b", "h100-sxm", **_LONG)
    assert found.fit.remedies == ("--quantize int4-g64", "--tensor-parallel 2 --gpus 2")
    int8 = _estimate("llama-3.1-70b", "h100-sxm", **_LONG, quantize="int8")
    assert not int8.fits
    # Of more sequences than two devices hold, four do.
    assert "--tensor-parallel 4 --gpus 4" in _estimate("llama-3.1-70b", "h100-sxm", **(_LONG | {"batch_size": 100})).fit.remedies


@pytest.mark.parametrize(("length", "batch"), [(512, 25081), (511, 20000), (100, 3000), (4000, 9), (9000, 9)])
def test_the_longest_prompts_of_a_batch_that_fits_are_no_shorter_than_its_own(length: int, batch: int) -> None:
    """With one token each: then shorter prompts take more, of which a pass holds more and each has its page."""
    asked: dict[str, object] = {"batch_size": batch, "sequence_length": length, "decode_length": 1}
    found = _estimate("llama-3.1-8b", "l4", **asked)
    assert found.fits
    assert found.largest_context is not None
    assert found.largest_context >= length
    assert _estimate("llama-3.1-8b", "l4", **(asked | {"sequence_length": found.largest_context})).fits
    assert not _estimate("llama-3.1-8b", "l4", **(asked | {"sequence_length": found.largest_context + 1})).fits


@pytest.mark.parametrize(
    "changes",
    [
        {"admission": "diagonal", "group_size": 8, "num_groups": 2},
        {"admission": "zigzag", "group_size": 8, "num_groups": 4},
        {"admission": "row", "group_size": 8},
        {"admission": "diagonal", "group_size": 8},
        {"admission": "zigzag", "group_size": 8, "decode_length": 1},
        {"offload": "weights:0.5"},
        {"offload": "pages"},
        {},
    ],
)
def test_what_fits_is_one_of_those_batches_that_do(changes: dict[str, object]) -> None:
    """In groups a batch takes what those in flight take, for the verdict as for the most that there is room for."""
    for batch in (1, 64, 512):
        found = _estimate("opt-6.7b", "l4", **({"batch_size": batch} | changes))
        assert found.fits == (found.largest_batch is None or batch <= found.largest_batch)
        assert found.fits == (found.largest_context is None or found.request.workload.length <= found.largest_context)
        if found.largest_batch:
            edge = _estimate("opt-6.7b", "l4", **({"batch_size": found.largest_batch} | changes))
            assert edge.fits
    alone = _estimate("opt-6.7b", "l4", batch_size=8)
    if changes.get("admission") == "row":
        assert _estimate("opt-6.7b", "l4", **({"batch_size": 512} | changes)).memory == alone.memory


def test_devices_that_share_layers_are_advised_more_devices_and_weights_on_the_host_none() -> None:
    shared = {"quantize": "int8", "parallel": "layers"}
    found = _estimate("llama-2-70b", "l4", gpus=2, **shared)
    assert found.remedy == "--gpus 4"
    assert _estimate("llama-2-70b", "l4", gpus=4, **shared).fits
    # Half of the layers in 4 bits fit, all of them would not.
    assert _estimate("llama-2-70b", "l4", gpus=2, parallel="layers").remedy == "--quantize int4-g64"
    assert _estimate("llama-2-70b", "l4", gpus=2, parallel="layers", quantize="int4-g64").fits
    hosted = _estimate("opt-175b", "l4", offload="weights:0.1")
    assert not hosted.fits
    assert "--tensor-parallel" not in (hosted.remedy or "")


@pytest.mark.parametrize(
    ("model", "device", "batch"), [("opt-6.7b", "rtx-3080", 8), ("llama-2-70b", "rtx-4090", 1), ("opt-6.7b", "rtx-3080", 500)]
)
def test_weights_that_are_too_much_may_come_over_the_link(model: str, device: str, batch: int) -> None:
    found = _estimate(model, device, batch_size=batch)
    assert found.fit.offload is not None
    words = found.fit.offload.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    asked = {"batch_size": int(given.get("--batch-size", batch)), "offload": given["--offload"]}
    assert _estimate(model, device, **asked).fits
    share = float(given["--offload"].partition(":")[2] or 1)
    # A hundredth less is not enough, nor is a sequence more.
    closest = {"offload": f"weights:{share - 0.01:g}"} if asked["batch_size"] == batch else {"batch_size": asked["batch_size"] + 1}
    assert not _estimate(model, device, **(asked | closest)).fits


@pytest.mark.parametrize(
    ("model", "device", "changes"),
    [
        ("llama-2-7b", "h100-sxm", {"batch_size": 4000}),  # fewer sequences are enough
        ("llama-2-70b", "rtx-4090", {"tensor_parallel": 2}),
        ("llama-2-70b", "rtx-4090", {"stack": "vllm"}),
        ("qwen3-32b", "rtx-3080", {}),  # is estimated and not run
        ("opt-6.7b", "l4", {"batch_size": 1}),  # fits
    ],
)
def test_where_that_would_not_help_or_run_it_is_not_advised(model: str, device: str, changes: dict[str, object]) -> None:
    assert _estimate(model, device, **changes).fit.offload is None


def test_nothing_helps_a_model_that_no_machine_of_such_cards_holds() -> None:
    found = _estimate("opt-175b", "rtx-2080-ti")
    assert not found.fits
    assert found.remedy is None or "--tensor-parallel" in found.remedy
