"""Recorded forwards of texts give what plain ones give, whatever ran between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferometer import LLM
from inferometer.engine import text_graphs
from inferometer.engine.graph import Graph
from inferometer.engine.text_graphs import OFTEN, TextGraphs
from inferometer.nn.batch import prompt_batch
from inferometer.nn.transformer import Transformer
from tiny_models import CONFIGS, tiny_model

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TEXTS = [[[5, 6, 7], [8, 9]], [[1, 2, 3], [4, 5]], [[3]], [[9, 9, 9], [2, 1]], [[4]], [[7]], [[5, 6, 7], [8, 9]], [[1, 2], [3, 4, 5]]]


@pytest.fixture(
    scope="module",
    params=[("cpu", "bert"), ("cpu", "llama"), *(pytest.param(("cuda", family), marks=GPU, id=f"cuda-{family}") for family in CONFIGS)],
    ids="-".join,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    """A small model. On the CPU a graph calls what it was made of."""
    device, family = request.param
    return LLM(tiny_model(tmp_path_factory.mktemp("model"), family), dtype="float32", device=device, weights="dummy", seed=4).model


def plain(model: Transformer, texts: list[list[int]]) -> torch.Tensor:
    with torch.inference_mode():
        return model.sweep(prompt_batch(texts, model.device))


def test_texts_of_lengths_that_come_again(model: Transformer) -> None:
    graphs = TextGraphs(model, recording=True)
    found = [graphs.states(texts) for texts in TEXTS]
    for texts, (hidden, batch) in zip(TEXTS, found, strict=True):  # all of them only now: none has been written over
        assert torch.equal(hidden, plain(model, texts))
        assert batch.query_lengths == tuple(map(len, texts))
    assert graphs.preparations == 3 + 2  # three lists of lengths, of which two came again


def test_the_batch_serves_the_pooler(model: Transformer) -> None:
    if not model.spec.pooler:
        return
    graphs = TextGraphs(model, recording=True)
    for texts in TEXTS[:2] + TEXTS[3:4]:
        hidden, batch = graphs.states(texts)
        with torch.inference_mode():
            want = model.pooled(plain(model, texts), prompt_batch(texts, model.device))
            assert torch.equal(model.pooled(hidden, batch), want)


def test_only_lengths_that_come_often_take_the_place_of_others(model: Transformer) -> None:
    graphs = TextGraphs(model, recording=True, most=2)
    for length in (1, 1, 2, 2, 1):  # two graphs, of which that of two tokens was used longest ago
        graphs.states([[7] * length])
    made = graphs.preparations
    for _ in range(OFTEN):
        assert torch.equal(graphs.states([[3, 4, 5]])[0], plain(model, [[3, 4, 5]]))
    assert graphs.preparations == made + 1
    assert torch.equal(graphs.states([[6, 5, 4]])[0], plain(model, [[6, 5, 4]]))
    assert graphs.preparations == made + 2
    graphs.states([[8]])
    assert graphs.preparations == made + 2  # still there
    assert torch.equal(graphs.states([[6, 9]])[0], plain(model, [[6, 9]]))
    assert graphs.preparations == made + 3  # met anew


def test_what_came_once_is_not_kept_for_ever(model: Transformer) -> None:
    graphs = TextGraphs(model, recording=True, most=1)
    for length in (1, 2, 3, 4, 5, 1):
        graphs.states([[7] * length])
    assert graphs.preparations == 6  # the first was forgotten


def test_nothing_is_recorded_where_the_device_is_the_slower_one(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_graphs, "LAYER_FLOPS", 1.0)
    graphs = TextGraphs(model, recording=True)
    for _ in range(3):
        assert torch.equal(graphs.states([[7, 8]])[0], plain(model, [[7, 8]]))
    assert graphs.preparations == 0


def test_an_empty_text_is_refused_and_changes_nothing(model: Transformer) -> None:
    graphs = TextGraphs(model, recording=True)
    for _ in range(3):
        with pytest.raises(ValueError, match="at least one query token"):
            graphs.states([[1], []])
    assert torch.equal(graphs.states([[7, 8]])[0], plain(model, [[7, 8]]))


class Scarce:
    """Makes graphs, but for some attempts, by number from 1, for which memory runs out; knows which functions are still held."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self._fails = fails
        self.asked = 0
        self.held: weakref.WeakSet[Any] = weakref.WeakSet()

    def __call__(self, function: Callable[[], None], device: torch.device, pool: Any) -> Graph:
        self.asked += 1
        self.held.add(function)
        if self._fails(self.asked):
            function()  # it takes memory until there is no more
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return Graph(function, device, pool)


def test_what_there_is_no_memory_to_record_runs_as_it_is(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = Scarce(lambda attempt: attempt == 2)
    monkeypatch.setattr(text_graphs, "Graph", scarce)
    graphs = TextGraphs(model, recording=True)
    small, large = [[[7, 8]], [[4, 5]], [[9, 1]]], [[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[2, 2, 2]]]
    for texts in small:
        assert torch.equal(graphs.states(texts)[0], plain(model, texts))
    assert (scarce.asked, graphs.preparations) == (1, 2)
    for texts in large:
        hidden, batch = graphs.states(texts)
        assert torch.equal(hidden, plain(model, texts))
        assert batch.query_lengths == (3,)
    # Tried once, which a measured run is told of. What it held is free, and with it the pool, which only all graphs together give back.
    assert (scarce.asked, graphs.preparations) == (2, 4)
    assert not scarce.held
    for texts in small:
        assert torch.equal(graphs.states(texts)[0], plain(model, texts))
    assert (scarce.asked, graphs.preparations) == (3, 6)


def test_lengths_that_cannot_be_recorded_are_not_kept_for_ever(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = Scarce(lambda attempt: True)
    monkeypatch.setattr(text_graphs, "Graph", scarce)
    graphs = TextGraphs(model, recording=True, most=1)
    for length in (1, 2, 3, 4, 5):
        for _ in range(3):
            graphs.states([[7] * length])
    assert scarce.asked == 5
    for _ in range(3):
        graphs.states([[7]])
    assert scarce.asked == 6  # the first was forgotten


def test_another_error_is_told(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Graph:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(text_graphs, "Graph", fail)
    graphs = TextGraphs(model, recording=True)
    graphs.states([[7]])
    with pytest.raises(RuntimeError, match="a kernel failed"):
        graphs.states([[7]])


def test_the_cpu_records_nothing_by_itself(model: Transformer) -> None:
    graphs = TextGraphs(model)
    for _ in range(3):
        graphs.states([[7, 8]])
    assert graphs.preparations == (0 if model.device.type == "cpu" else 2)
