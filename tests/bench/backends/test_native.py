"""The native backend over a tiny model: what it measures is the engine that generates, and its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from inferometer.bench.backends import native_tuning
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.measurement.check import check
from inferometer.bench.records.failures import CacheTooSmallError
from inferometer.engine.flight import Flight
from inferometer.engine.llm import LLM
from inferometer.engine.runner import Runner
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.schedule.admission import Admission, admission
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.sweep import Sweep
from tiny_models import tiny_model

ROWS, LENGTH, NEW = 6, 13, 21
PARAMS = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
PROMPTS = random_prompts(0, ROWS, LENGTH, 300)

ORDERS = {
    "none": None,
    "continuous": admission("continuous"),
    "zigzag": admission("zigzag", 2),
    "zigzag, two groups": admission("zigzag", 2, 2),
    "diagonal": admission("diagonal", 2),
    "diagonal, two groups": admission("diagonal", 2, 2),
    "row": admission("row", 4),
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny_model(tmp_path_factory.mktemp("model"), "llama")
    with LLM(path, weights="dummy", dtype="float32", device="cpu") as llm:
        yield llm


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


def backend(llm: LLM, order: Admission | None = None, *, sweep_tokens: int = 8192, lookahead: int = 0) -> NativeBackend:
    made = NativeBackend(llm, order, sweep_tokens=sweep_tokens, lookahead=lookahead)
    made.prepare(ROWS, LENGTH + NEW)
    return made


def expected(llm: LLM) -> list[list[int]]:
    return [llm.generate([prompt], PARAMS)[0].token_ids for prompt in PROMPTS]


def pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)


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


class Cramped:
    """An LLM on a device with room for so many pages."""

    def __init__(self, llm: LLM, room: int) -> None:
        self._llm = llm
        self._room = room

    def __getattr__(self, name: str) -> object:
        return getattr(self._llm, name)

    def room(self, *, seats: int, sweep_tokens: int) -> int:
        return self._room


def cramped(llm: LLM, room: int, order: Admission | None = None) -> NativeBackend:
    return NativeBackend(Cramped(llm, room), order)  # type: ignore[arg-type]


def test_a_batch_that_has_no_room_together_says_how_many_pages_it_needs_and_there_are(llm: LLM) -> None:
    needed = ROWS * pages(LENGTH + NEW - 1)
    cramped(llm, needed).prepare(ROWS, LENGTH + NEW)
    tight = cramped(llm, needed - 1)
    with pytest.raises(CacheTooSmallError, match=rf"6 x 33 tokens together need {needed} pages of .*, {needed - 1} \(.* are available"):
        tight.prepare(ROWS, LENGTH + NEW)
    assert tight.page_use() is None
    assert tight.resident_bytes == sum(parameter.nbytes for parameter in llm.model.parameters())


@pytest.mark.parametrize(("name", "least"), [("continuous", 1), ("zigzag", 2), ("diagonal", 2), ("row", 4)])
def test_an_admission_makes_do_with_less_but_not_with_less_than_a_group(llm: LLM, name: str, least: int) -> None:
    each = pages(LENGTH + NEW - 1)
    order = ORDERS[name]
    with pytest.raises(CacheTooSmallError, match=f"{least} x 33 tokens together need {least * each} pages"):
        cramped(llm, least * each - 1, order).prepare(ROWS, LENGTH + NEW)
    native = cramped(llm, least * each, order)
    native.prepare(ROWS, LENGTH + NEW)
    assert not native.phased  # the batch does not run as one block
    native.generate(PROMPTS, PARAMS)
    assert native.finish() == expected(llm)
    used = native.page_use()
    assert used is not None
    assert used.peak == used.pages == least * each


def test_room_for_many_rows_is_measured_only_where_few_would_fit(llm: LLM) -> None:
    asked: list[tuple[int, int]] = []

    class Watched(Cramped):
        def room(self, *, seats: int, sweep_tokens: int) -> int:
            asked.append((seats, sweep_tokens))
            return self._room

    native = NativeBackend(Watched(llm, 20_000))  # type: ignore[arg-type]
    native.prepare(2, 10)
    native.prepare(4, 10)
    assert asked == [(256, 8192)]
    native.prepare(9000, 10)
    assert asked == [(256, 8192), (9000, 9000)]
    with pytest.raises(CacheTooSmallError):
        native.prepare(10**9, 10)
    assert len(asked) == 2


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


class Choosy(Cramped):
    """An LLM whose launches are chosen by measuring, which takes a while."""

    def __init__(self, llm: LLM, clock: list[float]) -> None:
        super().__init__(llm, 20_000)
        self.asked: list[tuple[tuple[int, ...], float]] = []
        self._clock = clock

    def tune(self, rows: Sequence[int], *, seconds: float) -> int:
        self.asked.append((tuple(rows), seconds))
        self._clock[0] += 20 if rows else 0
        return 5 if rows else 0


@pytest.mark.parametrize(
    ("order", "rows", "buckets"),
    [
        ("none", 3, (4,)),
        ("none", 32, (32,)),
        ("none", 33, ()),
        ("zigzag, two groups", 6, (4,)),
        ("row", 6, (4,)),
        ("diagonal", 7, (2, 4, 8)),
        ("continuous", 6, (1, 2, 4, 8)),
    ],
)
def test_launches_are_measured_for_the_rows_that_will_run_and_once(
    llm: LLM, order: str, rows: int, buckets: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the pages are taken; a minute is enough for a model, and what takes long is said."""
    clock = [0.0]
    monkeypatch.setattr(native_tuning.time, "monotonic", lambda: clock[0])
    choosy = Choosy(llm, clock)
    native = NativeBackend(choosy, ORDERS[order])  # type: ignore[arg-type]
    assert choosy.asked == [((), 0)]  # what is on file
    made = native.preparations
    for _ in range(2):
        native.prepare(rows, 10)
        assert choosy.asked[1:] == ([(buckets, 60.0)] if buckets else [])
    said = capsys.readouterr().err
    assert said.count("\n") == bool(buckets)
    if buckets:
        assert f"5 launches for {' and '.join(map(str, buckets))} rows of" in said
        assert "in 20 s" in said
    assert native.preparations == made + len(buckets)


def test_how_long_launches_are_measured_is_asked(llm: LLM) -> None:
    choosy = Choosy(llm, [0.0])
    native = NativeBackend(choosy, tuning_seconds=2.5)  # type: ignore[arg-type]
    native.prepare(3, 10)
    assert choosy.asked == [((), 0), ((4,), 2.5)]


def test_a_forward_of_few_tokens_has_its_launches_measured_too(llm: LLM) -> None:
    choosy = Choosy(llm, [0.0])
    native = NativeBackend(choosy)  # type: ignore[arg-type]
    native.forward([[1, 2, 3], [4, 5, 6]], loss=False)
    native.forward([[1] * 33], loss=False)
    assert [rows for rows, _ in choosy.asked] == [(), (8,)]


def test_launches_say_how_many_were_measured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    native = backend(llm)
    assert native.launches is None  # on a CPU there are none
    monkeypatch.setattr(native_tuning, "launches_known", lambda model, rows: (rows, 9))
    assert native.launches == {"measured": ROWS, "maps": 9}


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
