"""A case beside its bound and its prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.bench.prediction.outlook import outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.statistics import Summary
from inferometer.estimate.estimate import estimate
from inferometer.hardware.catalogue import find_device
from inferometer.model.presets import preset


@pytest.fixture(autouse=True)
def uncalibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has such a device and measured it, the limits would be other ones."""
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))


def _case(**changes: object) -> Case:
    fields: dict[str, object] = {
        "model": "opt-1.3b",
        "backend": "native",
        "dtype": "bfloat16",
        "device": "h100-sxm",
        "batch_size": 8,
        "sequence_length": 512,
        "decode_length": 32,
    }
    return Case(**(fields | changes))  # type: ignore[arg-type]


def _spec():  # type: ignore[no-untyped-def]
    found = preset("opt-1.3b")
    assert found is not None
    return found.spec()


def test_a_case_has_the_estimators_bound_and_prediction() -> None:
    found = outlook(_case(), _spec(), find_device("h100-sxm"))
    expected = estimate("opt-1.3b", "h100-sxm", batch_size=8, sequence_length=512, decode_length=32, dtype="bfloat16")
    assert found.bound is not None
    assert found.predicted is not None
    assert found.bound.decode_token_ms == expected.bound["decode_token_ms"]
    assert found.bound.binds == {"prefill_ms": "compute", "decode_token_ms": "memory"}
    assert found.predicted.prefill_ms == expected.prefill_ms
    # bloom, opt and the rest cost transformers more launches than the native engine.
    other = outlook(_case(backend="hf"), _spec(), find_device("h100-sxm"))
    assert other.predicted is not None
    assert other.predicted.decode_token_ms != found.predicted.decode_token_ms
    assert other.bound == found.bound


def test_utilisation_is_work_over_time_at_the_limits() -> None:
    found = outlook(_case(), _spec(), find_device("h100-sxm"))
    times = {"prefill_ms": Summary.of([50.0]), "decode_token_ms": Summary.of([4.0, 6.0])}
    used = found.utilisation(times)
    assert used is not None
    assert used["mbu"] == pytest.approx(found.phases["decode_token_ms"].memory_ms / 5.0)
    assert used["mfu"] == pytest.approx(found.phases["prefill_ms"].compute_ms / 50.0)
    # 2 x 1.2 billion weights in the layers x 4096 tokens, at 989 TFLOP/s: some 10 ms, and attention on top.
    assert 10 / 50 < used["mfu"] < 13 / 50


def test_a_forward_has_both_utilisations() -> None:
    found = outlook(_case(decode_length=None, forward_only=True), _spec(), find_device("h100-sxm"))
    used = found.utilisation({"forward_ms": Summary.of([20.0])})
    assert used is not None
    assert set(used) == {"mbu", "mfu"}
    assert found.utilisation({}) is None


def test_an_unknown_device_has_no_outlook() -> None:
    found = outlook(_case(device=None), _spec(), None)
    assert found.bound is None
    assert found.predicted is None
    assert found.utilisation({"decode_token_ms": Summary.of([1.0])}) is None


def test_assumed_limits_predict_but_do_not_bound() -> None:
    found = outlook(_case(device="cpu"), _spec(), find_device("cpu"))
    assert found.bound is None
    assert found.predicted is not None
    assert found.predicted.basis is not None
    assert "assumed" in found.predicted.basis


def test_what_was_not_timed_is_null_and_not_absent() -> None:
    """A decode length of 1 has no decode step, so nothing to hold against the bandwidth."""
    found = outlook(_case(decode_length=1), _spec(), find_device("h100-sxm"))
    used = found.utilisation({"prefill_ms": Summary.of([50.0])})
    assert used is not None
    assert set(used) == {"mbu", "mfu"}
    assert used["mbu"] is None
    assert used["mfu"] is not None


def test_groups_that_run_one_after_another_are_priced_one_by_one() -> None:
    """FlexGen's times are of all groups, document 000's 16 groups of 8: 2.56 s of prefill, 7.87 s in 31 steps, 16 GiB."""
    case = _case(backend="flexgen", dtype="float16", device="rtx-a6000", batch_size=128, admission="zigzag", group_size=8)
    found = outlook(case, _spec(), find_device("rtx-a6000")).predicted
    one = estimate("opt-1.3b", "rtx-a6000", batch_size=128, sequence_length=512, decode_length=32, dtype="float16", stack="flexgen",
                   admission="zigzag", group_size=8)  # fmt: skip
    assert found is not None
    assert found.interval is not None
    assert found.prefill_ms == pytest.approx(16 * one.predicted["prefill_ms"])
    assert found.decode_token_ms == pytest.approx(16 * one.predicted["decode_token_ms"])
    assert found.interval["prefill_ms"][0] < found.prefill_ms < found.interval["prefill_ms"][1]
    assert found.peak_memory_bytes == one.predicted["peak_memory_bytes"]
    assert found.prefill_ms == pytest.approx(2562, rel=0.1)


def test_a_quantized_case_is_priced_as_such_and_a_server_not_at_all() -> None:
    plain, eight = (outlook(_case(quantize=quantize), _spec(), find_device("h100-sxm")).predicted for quantize in (None, "int8"))
    assert plain is not None
    assert eight is not None
    assert plain.decode_token_ms is not None
    assert eight.decode_token_ms is not None
    assert eight.decode_token_ms < plain.decode_token_ms
    # On transformers int8 is LLM.int8, which costs time where native's saves it.
    theirs, same, eager = (
        outlook(_case(backend="hf", quantize=quantize), _spec(), find_device("h100-sxm")).predicted
        for quantize in ("int8", "bitsandbytes", None)
    )
    assert theirs == same
    assert theirs is not None
    assert eager is not None
    assert theirs.decode_token_ms is not None
    assert eager.decode_token_ms is not None
    assert theirs.decode_token_ms > eager.decode_token_ms
    assert outlook(_case(backend="http"), _spec(), find_device("h100-sxm")).predicted is None


@pytest.mark.parametrize("admission", ["zigzag", "diagonal", "row", "continuous"])
def test_a_run_that_shares_sweeps_is_bounded_and_predicted_as_a_whole(admission: str) -> None:
    size = None if admission == "continuous" else 8
    case = _case(batch_size=64, admission=admission, group_size=size)
    found = outlook(case, _spec(), find_device("h100-sxm"))
    whole = found.whole(case.steps)
    order = {} if size is None else {"admission": admission, "group_size": size}
    expected = estimate("opt-1.3b", "h100-sxm", batch_size=64, sequence_length=512, decode_length=32, dtype="bfloat16", **order)  # type: ignore[arg-type]
    assert whole.predicted is not None
    assert whole.bound is not None
    assert whole.bound.total_ms is not None
    assert whole.predicted.total_ms == expected.total_ms
    assert (whole.predicted.prefill_ms, whole.predicted.decode_token_ms, whole.bound.prefill_ms) == (None, None, None)
    assert whole.predicted.interval is not None
    assert set(whole.predicted.interval) == {"total_ms", "peak_memory_bytes", "j_per_token"}
    # Of that order, too: in a diagonal and a row not all sequences hold pages at once.
    for figure in ("peak_memory_bytes", "j_per_token"):
        assert getattr(whole.predicted, figure) == getattr(expected, figure)
        assert whole.predicted.interval[figure] == expected.interval[figure]
    # All FLOPs or all bytes: no more than the phases one after another, and most of it; one group at a time reads the weights eight times.
    apart = found.bound.prefill_ms + case.steps * found.bound.decode_token_ms  # type: ignore[union-attr,operator]
    assert 0.5 * apart < whole.bound.total_ms < (8 if admission == "row" else 1) * apart
    if size is not None:
        assert expected.least is not None
        assert whole.bound.total_ms == expected.least.ms
    assert whole.bound.binds == {"total_ms": "memory"} or whole.bound.binds == {"total_ms": "compute"}


def test_blocks_of_zigzag_follow_each_other() -> None:
    case = _case(batch_size=64, admission="zigzag", group_size=8, num_groups=4)
    found = outlook(case, _spec(), find_device("h100-sxm")).whole(case.steps).predicted
    block = estimate("opt-1.3b", "h100-sxm", batch_size=32, sequence_length=512, decode_length=32, dtype="bfloat16",
                     admission="zigzag", group_size=8)  # fmt: skip
    assert found is not None
    assert block.total_ms is not None
    assert found.total_ms == pytest.approx(2 * block.total_ms)


@pytest.mark.parametrize(
    ("where", "paced"),
    [
        ({"offload": "weights", "disk": True}, True),
        ({"offload": "weights", "disk": True, "host_memory_limit": 4 << 30}, True),
        ({"offload": "weights", "disk": True, "host_memory_limit": 1 << 30}, False),
        ({"percent": "0 100 100 0 100 0"}, True),
        ({"percent": "0 50 100 0 100 0", "disk": True, "host_memory_limit": 4 << 30}, False),
    ],
)
def test_nobody_knows_how_fast_a_disk_is(where: dict[str, object], paced: bool) -> None:
    found = outlook(_case(**where), _spec(), find_device("h100-sxm"))
    assert found.predicted is not None
    assert found.bound is not None
    assert found.predicted.peak_memory_bytes is not None
    times = found.predicted.prefill_ms, found.predicted.decode_token_ms, found.total_ms
    assert all(time is not None for time in times) if paced else times == (None, None, None)
    assert paced or set(found.predicted.interval or {}) <= {"peak_memory_bytes"}


@pytest.mark.parametrize(
    ("changes", "faster"),
    [
        ({"batch_size": 1, "sequence_length": 16}, ()),
        ({"batch_size": 192, "sequence_length": 64}, ("prefill_ms", "decode_token_ms")),
        ({"batch_size": 192, "sequence_length": 64, "decode_only": True}, ("decode_token_ms",)),
        ({"backend": "hf", "batch_size": 1, "sequence_length": 16}, ("prefill_ms", "decode_token_ms")),
    ],
)
def test_times_that_are_shorter_with_weights_as_they_are_are_kept(changes: dict[str, object], faster: tuple[str, ...]) -> None:
    eight, plain = (outlook(_case(quantize=form, **changes), _spec(), find_device("h100-sxm")).predicted for form in ("int8", None))
    assert eight is not None
    assert plain is not None
    assert plain.faster_unquantized is None
    assert eight.faster_unquantized == ({name: getattr(plain, name) for name in faster} or None)


def test_nothing_is_said_of_weights_that_a_checkpoint_has_in_few_bits() -> None:
    case = _case(quantize="compressed-tensors-int8", batch_size=192, sequence_length=64)
    found = outlook(case, _spec(), find_device("h100-sxm")).predicted
    assert found is not None
    assert found.faster_unquantized is None
