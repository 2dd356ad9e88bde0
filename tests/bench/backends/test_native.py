"""The native backend over a tiny model: what it measures is the engine that generates, and its pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native_backends import LENGTH, NEW, ORDERS, PARAMS, PROMPTS, ROWS, backend, expected, pages

from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.measurement.check import check
from inferometer.engine.flight import Flight
from inferometer.engine.llm import LLM
from inferometer.engine.runner import Runner
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.sweep import Sweep
from tiny_models import tiny_model


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """Every sweep that any engine launches."""
    seen: list[Sweep] = []
    launch = Runner.launch

    def watched(runner: Runner, sweep: Sweep) -> Flight:
        seen.append(sweep)
        return launch(runner, sweep)

    monkeypatch.setattr(Runner, "launch", watched)
    return seen


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("sweep_tokens", [8192, 30])
def test_prefill_and_decode_give_the_engines_tokens(llm: LLM, sweeps: list[Sweep], lookahead: int, sweep_tokens: int) -> None:
    native = backend(llm, lookahead=lookahead, sweep_tokens=sweep_tokens)
    assert native.phased
    for _ in range(2):  # the second time, nothing is found in a prefix cache
        sweeps.clear()
        native.prefill(PROMPTS, PARAMS)
        assert sum(sweep.tokens for sweep in sweeps) == ROWS * LENGTH
        assert sum(share.samples for sweep in sweeps for share in sweep.shares) == ROWS
        assert len(sweeps) == 1 if sweep_tokens == 8192 else len(sweeps) >= -(-ROWS * LENGTH // 30)
        for _ in range(NEW - 1):
            sweeps.clear()
            native.decode()
            assert [(sweep.tokens, sweep.decoding) for sweep in sweeps] == [(ROWS, ROWS)]
        sweeps.clear()
        tokens = native.finish()
        assert sweeps == []
    assert tokens == expected(llm)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("name", ORDERS)
def test_every_admission_gives_the_same_tokens(llm: LLM, name: str, lookahead: int) -> None:
    native = backend(llm, ORDERS[name], lookahead=lookahead, sweep_tokens=40)
    assert native.phased == (name in ("none", "zigzag"))
    for _ in range(2):
        native.generate(PROMPTS, PARAMS)
        assert native.finish() == expected(llm)


@pytest.mark.parametrize("name", ORDERS)
def test_a_continuation_is_what_generation_gives(llm: LLM, name: str) -> None:
    found = backend(llm, ORDERS[name], lookahead=1).continuation(PROMPTS, 4)
    assert [list(row) for row in found.tokens] == [row[:4] for row in expected(llm)]
    assert all(len(row) == 4 and max(row) <= 0 for row in found.log_probabilities)


def _in_flight(group: int, together: int | None) -> int:
    """The most pages of groups that enter at every sweep, at most `together` of them at once."""
    groups = [group] * (ROWS // group)
    age_of: list[int] = []  # of those in flight; the group that enters has age 0
    most = 0
    while groups or age_of:
        age_of = [age + 1 for age in age_of if age + 1 < NEW]
        if groups and (together is None or len(age_of) < together):
            age_of.append(0)
            groups.pop()
        most = max(most, sum(group * pages(LENGTH + age) for age in age_of))
    return most


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("none", ROWS * pages(LENGTH + NEW - 1)),
        ("zigzag", ROWS * pages(LENGTH + NEW - 1)),
        ("zigzag, two groups", 4 * pages(LENGTH + NEW - 1)),
        ("row", 4 * pages(LENGTH + NEW - 1)),
        ("diagonal", _in_flight(2, None)),
        ("diagonal, two groups", _in_flight(2, 2)),
    ],
)
def test_the_peak_of_pages_is_exact(llm: LLM, name: str, peak: int, lookahead: int) -> None:
    native = backend(llm, ORDERS[name], lookahead=lookahead)
    native.generate(PROMPTS, PARAMS)
    native.finish()
    used = native.page_use()
    assert used is not None
    assert used.peak == peak
    assert used.page_size == PAGE_SIZE
    assert used.page_bytes == PAGE_SIZE * 2 * 2 * 16 * 4  # 2 layers, keys and values, 2 heads of 8 numbers, float32
    native.generate([prompt[:2] for prompt in PROMPTS], SamplingParams(max_new_tokens=1, ignore_eos=True))
    again = native.page_use()
    assert again is not None
    assert again.peak < peak  # of that batch alone


def test_groups_enter_one_by_one_in_the_diagonal_and_together_in_a_zigzag(llm: LLM, sweeps: list[Sweep]) -> None:
    for name, entering in (("zigzag", [6, 0, 0, 0]), ("diagonal", [2, 2, 2, 0])):
        native = backend(llm, ORDERS[name])
        sweeps.clear()
        native.generate(PROMPTS, PARAMS)
        assert [len(sweep.shares) - sweep.decoding for sweep in sweeps[:4]] == entering


def test_more_rows_than_a_sweep_has_tokens_still_run_together(llm: LLM, sweeps: list[Sweep]) -> None:
    native = NativeBackend(llm, sweep_tokens=4)
    native.prepare(ROWS, 5)
    native.prefill([prompt[:3] for prompt in PROMPTS], SamplingParams(max_new_tokens=2, ignore_eos=True))
    sweeps.clear()
    native.decode()
    assert [sweep.decoding for sweep in sweeps] == [ROWS]
    assert [len(row) for row in native.finish()] == [2] * ROWS


def test_what_is_resident_is_the_weights_and_the_pages(llm: LLM) -> None:
    native = backend(llm)
    used = native.page_use()
    assert used is not None
    weights = sum(parameter.nbytes for parameter in llm.model.parameters())
    assert native.resident_bytes == weights + used.pages * used.page_bytes
    native.abandon()
    assert native.resident_bytes == weights
    assert native.page_use() is None


def test_a_batch_needs_a_cache(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match="prepared"):
        NativeBackend(llm).prefill(PROMPTS, PARAMS)


def test_the_prefix_cache_plays_no_part(llm: LLM, sweeps: list[Sweep]) -> None:
    native = NativeBackend(llm)
    native.prepare(2, 40)
    for _ in range(2):
        sweeps.clear()
        native.prefill([list(range(35))] * 2, SamplingParams(max_new_tokens=1, ignore_eos=True))
        assert sum(sweep.tokens for sweep in sweeps) == 70
        native.finish()


@pytest.mark.parametrize(
    ("settings", "coarsest"), [({}, torch.float32), ({"kv_dtype": "fp8"}, torch.bfloat16), ({"quantize": "w8a8"}, torch.bfloat16)]
)
def test_a_path_that_rounds_to_eight_bits_is_held_to_what_those_can_hold(
    tmp_path: Path, settings: dict[str, str], coarsest: torch.dtype
) -> None:
    """Against the pass that does not round: in float32's tolerance no such case would ever be printed."""
    path = tiny_model(tmp_path, "llama", hidden_size=64, intermediate_size=128)
    with LLM(path, weights="dummy", dtype="float32", device="cpu", **settings) as model:  # type: ignore[arg-type]
        made = NativeBackend(model)
        assert made.coarsest == coarsest
        made.prepare(ROWS, LENGTH + NEW)
        checked = check(made, None, PROMPTS, dtype=made.coarsest, steps=4, loss=False)
        assert checked.passed
        made.close()
