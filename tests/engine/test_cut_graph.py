"""A sweep over layers that come and go, recorded: what is launched between two places where the residency is asked is one graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferometer.engine import cut_graph
from inferometer.engine.cut_graph import CutGraph

LAYERS = 5


class Card:
    """Records what is launched while a graph is open, and runs it when the graph is replayed."""

    def __init__(self) -> None:
        self.open: list[str] | None = None
        self.ran: list[str] = []

    def launch(self, kernel: str) -> None:
        assert self.open is not None, f"{kernel} would run, not be recorded"
        self.open.append(kernel)

    def graph(self) -> Any:
        card, kernels = self, []

        def begin(pool: object, capture_error_mode: str) -> None:
            assert card.open is None
            assert pool == "pool"
            card.open = kernels

        def end() -> None:
            card.open = None

        def replay() -> None:
            assert kernels, "an empty graph"
            card.ran.append("+".join(kernels))

        return SimpleNamespace(capture_begin=begin, capture_end=end, replay=replay)


class Model:
    def __init__(self, card: Card) -> None:
        self.card = card
        self.residency: Any = self
        self.asked: list[str] = card.ran

    def acquire(self, layer: int) -> None:
        self.asked.append(f"acquire {layer}")

    def release(self, layer: int) -> None:
        self.asked.append(f"release {layer}")

    def sweep(self) -> None:
        self.card.launch("embed")
        for layer in range(LAYERS):
            self.residency.acquire(layer)
            self.card.launch(f"layer {layer}")
            self.residency.release(layer)
        self.card.launch("head")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", card.graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cut_graph, "recording_stream", lambda device: stream)
    return card


def recorded(model: Model, streamed: tuple[int, ...], sweep: Callable[[], None] | None = None) -> CutGraph:
    return CutGraph(sweep or model.sweep, model, streamed, torch.device("cuda"), "pool")  # type: ignore[arg-type]


def test_stretches_between_streamed_layers_are_graphs(card: Card) -> None:
    model = Model(card)
    graph = recorded(model, (1, 2, 4))
    assert card.ran == [], "nothing runs, and nobody is asked, while it is recorded"
    assert model.residency is model
    for _ in range(2):
        card.ran.clear()
        graph()
        assert card.ran == [
            "embed+layer 0",
            "acquire 1", "layer 1", "release 1",
            "acquire 2", "layer 2", "release 2",
            "layer 3",
            "acquire 4", "layer 4", "release 4",
            "head",
        ]  # fmt: skip


def test_nothing_streamed_is_one_graph(card: Card) -> None:
    recorded(Model(card), ())()
    assert card.ran == ["embed+layer 0+layer 1+layer 2+layer 3+layer 4+head"]


def test_what_fails_while_it_is_recorded_leaves_the_residency_and_no_open_graph(card: Card) -> None:
    model = Model(card)

    def fail() -> None:
        card.launch("embed")
        model.residency.acquire(1)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        recorded(model, (1, 2), fail)
    assert model.residency is model
    assert card.open is None


def test_elsewhere_than_on_a_gpu_the_function_runs() -> None:
    ran: list[int] = []
    graph = CutGraph(lambda: ran.append(1), None, (1,), torch.device("cpu"), None)  # type: ignore[arg-type]
    graph()
    graph()
    assert ran == [1, 1]
