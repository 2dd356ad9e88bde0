"""Choosing launches: measured once, kept on file, bounded in time, and never another result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferometer.engine import tuning
from inferometer.engine.tuning import Choice, Size, clock_of, launches_known, settled, tune
from inferometer.kernels.skinny_choice import BUCKETS, PLAIN, Shape, choice_path, save_choices
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.model.description import describe
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

LAUNCH = candidates(8, 768)[1]


@pytest.fixture
def model() -> Transformer:
    spec = describe("opt-125m", config_only=True).spec
    with torch.device("meta"):
        return Transformer(spec, torch.device("meta"), torch.bfloat16)


class Gpu:
    """A card on which every map takes one unit of time, ten with any launch but the best; it counts what was tried."""

    def __init__(self, answer: Choice) -> None:
        self.answer = answer
        self.tried: set[tuple[int, Size, Choice]] = set()

    def clock_of(self, model: Transformer, rows: int, maps: Mapping[Size, Any]) -> Callable[[Mapping[Size, Choice]], float]:
        def seconds_of(choices: Mapping[Size, Choice]) -> float:
            assert set(choices) == set(maps)
            self.tried |= {(rows, size, choice) for size, choice in choices.items()}
            return sum(1.0 if choice == self.best(rows, size) else 10.0 for size, choice in choices.items())

        return seconds_of

    def best(self, rows: int, size: Size) -> Choice:
        """The answer where it may be chosen, else the first that may."""
        options = (*candidates(rows, size[1]), None)
        return self.answer if self.answer in options else options[0]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Choice], Gpu]:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "usable", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")

    def install(answer: Choice) -> Gpu:
        card = Gpu(answer)
        monkeypatch.setattr(tuning, "clock_of", card.clock_of)
        return card

    return install


def linears(model: Transformer) -> list[Linear]:
    return [module for module in model.modules() if isinstance(module, Linear)]


SHAPES: set[Size] = {(*size, PLAIN) for size in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50272, 768))}


def test_every_launch_of_every_shape_is_tried(model: Transformer, gpu: Any) -> None:
    card = gpu(LAUNCH)
    assert tune(model) == len(SHAPES) * len(BUCKETS)
    assert card.tried == {(rows, size, choice) for rows in BUCKETS for size in SHAPES for choice in (*candidates(rows, size[1]), None)}
    assert model.head is not None
    for module in (*linears(model), model.head):
        size = (*((50272, 768) if module.weight is None else module.weight.shape), PLAIN)
        assert module.launches == {rows: card.best(rows, size) for rows in BUCKETS}


def test_the_next_start_measures_nothing(model: Transformer, gpu: Any) -> None:
    gpu(None)
    tune(model, (1, 8))
    for linear in linears(model):
        linear.launches = {}
    again = gpu(LAUNCH)
    assert tune(model, (1, 8)) == 0
    assert not again.tried
    assert all(linear.launches == {1: None, 8: None} for linear in linears(model))


def test_what_is_on_file_serves_whatever_is_measured_now(model: Transformer, gpu: Any) -> None:
    """A batch of 8 rows leaves one row its launches, and to measure nothing is to read the file."""
    gpu(None)
    tune(model, (1,))
    tune(model, (8,))
    assert all(linear.launches == {1: None, 8: None} for linear in linears(model))
    for linear in linears(model):
        linear.launches = {}
    assert tune(model, (), seconds=0) == 0
    assert all(linear.launches == {1: None, 8: None} for linear in linears(model))


def test_how_many_launches_are_known(model: Transformer, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(LAUNCH)
    assert launches_known(model, 3) == (0, 5)
    tune(model, (4,))
    assert launches_known(model, 3) == launches_known(model, 4) == (5, 5)
    assert launches_known(model, 5) == (0, 5)
    assert launches_known(model, 33) is None  # the matrix library's
    monkeypatch.setattr(tuning, "usable", lambda device: False)
    assert launches_known(model, 4) is None


def test_fewest_rows_are_measured_first(model: Transformer, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the time goes: of one row first, whatever the order in which they are asked for."""
    card, clock = gpu(LAUNCH), iter(range(10**6))
    monkeypatch.setattr(tuning.time, "monotonic", lambda: next(clock) / 8)
    assert 0 < tune(model, (16, 4, 1)) <= 5
    assert {count for count, _, _ in card.tried} == {1}


def test_a_damaged_file_is_measured_anew(model: Transformer, gpu: Any, tmp_path: Path) -> None:
    gpu(None)
    tune(model, (8,))
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_text(file.read_text()[:-20])
    again = gpu(LAUNCH)
    assert tune(model, (8,)) == 5
    assert {size for _, size, _ in again.tried} == SHAPES
    assert all(linear.launches == {8: LAUNCH} for linear in linears(model))


def test_time_runs_out(model: Transformer, gpu: Any) -> None:
    """Nothing more is measured; the table decides, and the next start goes on."""
    card = gpu(LAUNCH)
    assert tune(model, seconds=0) == 0
    assert not card.tried
    assert all(linear.launches == {} for linear in linears(model))
    assert tune(model, (8,)) == 5


def test_what_is_known_stays_as_it_is_while_the_rest_is_measured(
    model: Transformer, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start whose time ran out."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")
    (path := choice_path("A Card")).parent.mkdir(parents=True)
    save_choices(path, {Shape("bfloat16", 8, 768, 768): None})
    card = gpu(LAUNCH)
    assert tune(model, (8,)) == 4
    assert {choice for _, size, choice in card.tried if size == (768, 768, PLAIN)} == {None}
    chosen = {tuple(linear.weight.shape): linear.launches[8] for linear in linears(model)}
    assert chosen == {(2304, 768): LAUNCH, (768, 768): None, (3072, 768): LAUNCH, (768, 3072): LAUNCH}


def test_without_memory_for_a_step_the_table_decides(model: Transformer, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(LAUNCH)
    monkeypatch.setattr(tuning, "clock_of", lambda *arguments: None)
    assert tune(model) == 0
    assert all(linear.launches == {} for linear in linears(model))


def test_an_encoder_has_no_steps(gpu: Any) -> None:
    card = gpu(LAUNCH)
    spec = describe("bert-base-uncased", config_only=True).spec
    with torch.device("meta"):
        encoder = Transformer(spec, torch.device("meta"), torch.bfloat16)
    assert tune(encoder) == 0
    assert not card.tried


def test_nothing_is_done_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Transformer) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    assert tune(model) == 0
    assert not list(tmp_path.iterdir())


A, B, C = (Tiling(64, 128, 4, stages, 2) for stages in (2, 3, 4))
FIRST, SECOND = (16, 32), (32, 16)


class TestSettled:
    """Two maps, and a table of what a step takes."""

    OPTIONS: Mapping[Size, tuple[Choice, ...]] = {FIRST: (A, B, None), SECOND: (A, B, None)}

    def settle(self, step: Callable[[Choice, Choice], float], start: Choice = A, most: int = 1000) -> dict[Size, Choice]:
        self.asked = 0

        def seconds_of(choices: Mapping[Size, Choice]) -> float:
            self.asked += 1
            return step(choices[FIRST], choices[SECOND])

        return settled({FIRST: start, SECOND: start}, self.OPTIONS, seconds_of, lambda: self.asked < most)

    def test_what_is_slower_alone_may_be_faster_beside_others(self) -> None:
        """A launch that leaves room pays once the other one uses it: the first map is gone through again."""
        times = {(A, A): 10.0, (B, A): 11.0, (A, B): 9.0, (B, B): 7.0}
        assert self.settle(lambda one, other: times.get((one, other), 20.0)) == {FIRST: B, SECOND: B}

    def test_the_library_is_an_option_like_others(self) -> None:
        assert self.settle(lambda one, other: 5.0 if one is None else 6.0) == {FIRST: None, SECOND: A}

    def test_noise_changes_nothing(self) -> None:
        times = iter([1.0, 0.9985, 0.998, 1.001, 0.9975, 1.0] * 9)
        assert self.settle(lambda one, other: next(times)) == {FIRST: A, SECOND: A}

    def test_a_launch_that_fails_is_never_best(self) -> None:
        """Nor is it where every map starts with it."""
        assert self.settle(lambda one, other: math.inf if A in (one, other) else 3.0) == {FIRST: None, SECOND: None}
        assert self.settle(lambda one, other: math.inf if A in (one, other) else 3.0 if B not in (one, other) else 2.0)[FIRST] == B
        assert self.settle(lambda one, other: math.inf if None in (one, other) else 3.0) == {FIRST: A, SECOND: A}

    def test_a_map_is_settled_once_all_its_options_were_tried(self) -> None:
        assert self.settle(lambda one, other: 1.0, most=3) == {}
        assert self.settle(lambda one, other: 1.0, most=6) == {FIRST: A}
        assert self.settle(lambda one, other: 1.0) == {FIRST: A, SECOND: A}
        assert self.asked == 7  # nothing changed: once through

    def test_what_was_timed_while_the_card_was_waking_is_timed_again(self) -> None:
        """The start takes 5 and is the best; its first timing, and that alone, says 9."""
        asked: list[tuple[Choice, Choice]] = []

        def step(one: Choice, other: Choice) -> float:
            asked.append((one, other))
            return 9.0 if len(asked) <= 2 else 5.0 if one == A else 6.0

        assert self.settle(step, most=6) == {FIRST: A}

    def test_the_start_need_not_be_an_option(self) -> None:
        assert self.settle(lambda one, other: 1.0, start=C) == {FIRST: C, SECOND: C}


class TestClock:
    """On a CPU, where launches are not, with a chain that does not run."""

    @pytest.fixture
    def seconds_of(self, monkeypatch: pytest.MonkeyPatch, model: Transformer) -> Any:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1000))
        self.error: Exception | None = None

        def seconds(chain: Any) -> float:
            if self.error is not None:
                raise self.error
            return 3.0

        monkeypatch.setattr(tuning, "DecodeChain", lambda *arguments: SimpleNamespace(seconds=lambda: seconds(None)))
        self.maps = {(768, 768, PLAIN): [linear for linear in linears(model) if linear.weight.shape == (768, 768)]}
        return clock_of(model, 4, self.maps)

    def test_all_maps_of_a_size_get_the_launch(self, seconds_of: Any) -> None:
        assert seconds_of({(768, 768, PLAIN): A}) == 3.0
        assert all(linear.launches == {4: A} for linear in self.maps[768, 768, PLAIN])

    def test_what_does_not_fit_takes_for_ever_but_a_fault_is_one(self, seconds_of: Any) -> None:
        self.error = RuntimeError("out of shared memory")
        assert seconds_of({(768, 768, PLAIN): A}) == math.inf
        self.error = torch.AcceleratorError("an illegal memory access")
        with pytest.raises(torch.AcceleratorError):
            seconds_of({(768, 768, PLAIN): A})

    def test_no_memory(self, monkeypatch: pytest.MonkeyPatch, seconds_of: Any, model: Transformer) -> None:
        def full(*arguments: Any) -> None:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(tuning, "DecodeChain", full)
        assert clock_of(model, 4, {}) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_tunes_within_its_time_and_changes_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    spec = describe("opt-125m", config_only=True).spec
    model = Transformer(spec, torch.device("cuda"), torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    assert tune(model, (8,), seconds=120) == 5
    for linear in linears(model)[:4]:
        for rows in (1, 2, 7, 8):
            x = torch.randn(rows, linear.weight.shape[1], device="cuda", dtype=torch.bfloat16)
            exact = x.double() @ linear.weight.double().T + (0 if linear.bias is None else linear.bias.double())
            torch.testing.assert_close(linear(x).double(), exact, atol=2e-2, rtol=2e-2)
    assert tune(model, (8,), seconds=0) == 0
