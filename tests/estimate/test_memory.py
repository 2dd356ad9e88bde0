"""Peak memory by use, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate import estimate
from inferometer.estimate.largest import largest_batch, largest_context
from inferometer.estimate.memory import activation_bytes, kv_bytes, logit_bytes, memory
from inferometer.estimate.stack import STACKS
from inferometer.estimate.workload import Workload
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats, kv_bytes_per_token
from inferometer.model.parameters import parameter_count
from inferometer.model.presets import PRESETS, preset
from inferometer.model.spec import ModelSpec

NATIVE, HF, FORWARD = STACKS["native"], STACKS["hf-eager"], STACKS["torch-eager-forward"]


def _spec(name: str) -> ModelSpec:
    found = preset(name)
    assert found is not None
    return found.spec()


def test_weights_and_cache_by_hand() -> None:
    spec = _spec("llama-2-7b")
    found = memory(spec, Formats(), NATIVE, Workload(batch=4, length=1000, generated=24), cpu=False)
    assert found.weights == 2 * parameter_count(spec)
    assert found.kv == 4 * 1024 * 2 * 32 * 4096 * 2
    assert found.peak_bytes == found.weights + found.workspace + found.kv + max(found.activations, found.logits)
    assert found.device_bytes == found.peak_bytes + found.context


@pytest.mark.parametrize(("length", "generated", "pages"), [(1, 1, 1), (16, 1, 1), (16, 2, 2), (10, 7, 1), (10, 8, 2), (512, 32, 34)])
def test_a_sequence_holds_whole_pages_of_all_but_its_last_token(length: int, generated: int, pages: int) -> None:
    spec, asked = _spec("opt-1.3b"), Workload(batch=3, length=length, generated=generated)
    assert kv_bytes(spec, Formats(), NATIVE, asked) == 3 * pages * 16 * 2 * 24 * 2048 * 2
    assert kv_bytes(spec, Formats(), NATIVE, replace(asked, generated=0)) == 0
    held = 3 * (length + generated) * 2 * 24 * 2048 * 2
    assert kv_bytes(spec, Formats(), HF, asked) == held + held // 48


def test_sequences_of_one_token_hold_pages_for_a_sweep() -> None:
    spec, asked = _spec("opt-1.3b"), Workload(batch=16, length=1024, generated=1)
    page = 16 * 2 * 24 * 2048 * 2
    assert kv_bytes(spec, Formats(), NATIVE, asked) == 8 * 64 * page  # 8192 tokens
    assert kv_bytes(spec, Formats(), NATIVE, replace(asked, generated=2)) == 16 * 65 * page
    assert kv_bytes(spec, Formats(), NATIVE, replace(asked, length=10_000)) == 625 * page


def test_a_cpu_has_logits_of_those_that_end_in_a_sweep_and_a_gpu_room_for_all() -> None:
    spec, asked = _spec("opt-1.3b"), Workload(batch=16, length=1024, generated=1)

    def rows(asked: Workload, *, cpu: bool) -> float:
        return logit_bytes(spec, Formats(), NATIVE, asked, cpu=cpu) / logit_bytes(spec, Formats(), NATIVE, replace(asked, batch=1), cpu=cpu)

    assert rows(asked, cpu=True) == 8  # 8192 tokens
    assert rows(asked, cpu=False) == 16
    assert rows(replace(asked, generated=2), cpu=True) == 16  # all decode together


def test_prompts_run_in_sweeps_of_limited_size() -> None:
    spec = _spec("opt-1.3b")

    def activations(batch: int, length: int, generated: int) -> int:
        return activation_bytes(spec, Formats(), NATIVE, Workload(batch=batch, length=length, generated=generated))

    full = activations(1, 8192, 0)
    assert activations(8, 1024, 8) == activations(64, 1024, 8) == full
    assert activations(7, 1024, 8) < full
    assert activations(64, 1024, 0) == 8 * full  # a forward alone is one sweep
    assert activations(10_000, 1024, 8) == activations(1, 10_000, 0)  # all rows decode together


def test_a_gpus_pages_need_no_bias_in_memory() -> None:
    spec, asked = _spec("bloom-560m"), Workload(batch=2, length=256, generated=4)

    def activations(**where: bool) -> int:
        return activation_bytes(spec, Formats(), NATIVE, asked, **where)

    # The bias, and inner states before an activation, which a GPU's matrix library applies itself.
    assert activations(cpu=True) - activations(cpu=False) == 16 * 256 * 256 * 2 + 2 * 256 * (4 - 1) * 1024 * 2


def test_a_layers_largest_moment_by_hand() -> None:
    # OPT: the layer's input, the residual after attention, the norm's output, the inner width before and after its activation.
    spec = _spec("opt-1.3b")
    found = memory(spec, Formats(), NATIVE, Workload(batch=1, length=100), cpu=True)
    assert found.activations == 100 * (3 * 2048 + 2 * 8192) * 2
    # A GPU's matrix library writes nothing but the latter: then the result stands beside it.
    found = memory(spec, Formats(), NATIVE, Workload(batch=1, length=100), cpu=False)
    assert found.activations == 100 * (4 * 2048 + 8192) * 2
    # Llama, whose norm's output is gone by then: the rotation's tables, both halves of the gated width, their activation and product.
    spec = _spec("llama-2-7b")
    found = memory(spec, Formats(), NATIVE, Workload(batch=1, length=100), cpu=False)
    assert found.activations == 100 * (2 * 128 + 2 * 4096 + 4 * 11008) * 2


def test_logits_by_the_path_of_the_loss() -> None:
    opt, llama, formats = _spec("opt-1.3b"), _spec("clm-60m"), Formats()
    asked = Workload(batch=2, length=3, loss=True)
    assert logit_bytes(opt, formats, FORWARD, asked, cpu=False) == 2 * 6 * opt.vocabulary * 2
    assert logit_bytes(opt, formats, HF, asked, cpu=False) == 10 * 6 * opt.vocabulary
    assert logit_bytes(llama, formats, FORWARD, asked, cpu=False) == 4 * 6 * llama.vocabulary * 2
    assert logit_bytes(opt, formats, FORWARD, replace(asked, loss=False), cpu=False) == 6 * opt.vocabulary * 2
    assert logit_bytes(opt, formats, NATIVE, Workload(batch=16, length=1024, loss=True), cpu=False) == 2 * 1024 * opt.vocabulary * 2
    assert logit_bytes(opt, formats, NATIVE, Workload(batch=16, length=1024, loss=True), cpu=True) == 256 * opt.vocabulary * 10
    # Of a large vocabulary fewer rows at a time: a bloom's 250,880 tokens.
    bloom = _spec("bloom-560m")
    assert logit_bytes(bloom, formats, NATIVE, Workload(batch=16, length=1024, loss=True), cpu=False) == 2 * 256 * bloom.vocabulary * 2
    assert logit_bytes(_spec("bert-base"), formats, NATIVE, asked, cpu=False) == 0


def test_scores_go_through_memory_only_where_attention_is_not_fused() -> None:
    spec, asked = _spec("bloom-560m"), Workload(batch=2, length=256)
    native = memory(spec, Formats(), NATIVE, asked, cpu=False).activations
    eager = memory(spec, Formats(), HF, asked, cpu=False).activations
    scores = 16 * 256 * 256
    # One bias for both sequences, against scores and their float32 softmax of each; and inner states before the activation.
    assert eager - native == 2 * scores * (2 + 4) - scores * 2 + 2 * 256 * (4 - 1) * 1024 * 2


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([name for name, each in PRESETS.items() if not each.spec().encoder]),
    st.sampled_from(["t4", "rtx-4090", "a100-sxm-40gb", "b200", "mi300x"]),
    st.sampled_from(sorted(STACKS)),
    st.integers(1, 900),
    st.integers(0, 200),
)
def test_the_largest_batch_fits_and_the_next_does_not(name: str, slug: str, stack: str, length: int, generated: int) -> None:
    spec, device = _spec(name), find_device(slug)
    asked = Workload(batch=1, length=length, generated=generated)

    def fits(work: Workload) -> bool:
        needed = memory(spec, Formats(), STACKS[stack], work, cpu=False)
        return needed.device_bytes <= device.usable_memory_bytes

    largest = largest_batch(asked, fits)
    assert largest is not None
    assert largest == 0 or fits(replace(asked, batch=largest))
    assert not fits(replace(asked, batch=largest + 1))


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 200), st.integers(1, 9), st.integers(1, 300))
def test_no_longer_prompts_fit_than_the_longest(batch: int, generated: int, sweep: int, page: int, room: int) -> None:
    asked = Workload(batch=batch, length=1, generated=generated)

    def fits(work: Workload) -> bool:
        return work.held_tokens(page, sweep) <= room

    fitting = [length for length in range(1, 301) if fits(replace(asked, length=length))]
    assert largest_context(asked, fits, 300 + generated, sweep) == max(fitting, default=0)
    assert largest_context(asked, fits, None, sweep) == max(fitting, default=0)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.sampled_from([1, 3, 16]), st.integers(1, 9))
def test_groups_of_consecutive_ages_hold_whole_pages_each(length: int, generated: int, groups: int, page: int, size: int) -> None:
    asked = Workload(batch=groups * size, length=length, generated=generated, group=size, staggered=groups)
    oldest = range(max(0, generated - groups), generated)
    assert asked.held_tokens(page, None) == size * sum(-(-(length + age) // page) * page for age in oldest)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_divide_what_each_device_holds(shards: int) -> None:
    spec, asked = _spec("llama-2-70b"), Workload(batch=8, length=512, generated=64)
    one = memory(spec, Formats(), NATIVE, asked, cpu=False)
    cut = memory(spec, Formats(shards=shards), NATIVE, asked, cpu=False)
    assert cut.kv * shards == one.kv
    assert cut.weights < one.weights / shards * 1.01
    assert kv_bytes_per_token(spec, Formats(shards=shards)) * shards == kv_bytes_per_token(spec, Formats())


def test_a_cache_that_comes_back_with_every_step_is_held_twice() -> None:
    """As torch's peak of DeepSpeed says beside H200s: 1,920 rows of 10 + 100 tokens held 79.5 GiB, of which 2.4 are weights."""
    asked = {"batch_size": 1920, "sequence_length": 10, "decode_length": 100}
    returned, reserved = (
        estimate("doc004-1.3b", "h200", stack=stack, calibration=None, **asked).memory for stack in ("deepspeed", "fastertransformer")
    )
    assert returned.kv == 2 * reserved.kv
    assert returned.peak_bytes / 2**30 == pytest.approx(79.5, rel=0.05)
