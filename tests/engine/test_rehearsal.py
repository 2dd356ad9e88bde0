"""What is measured before pages are taken: a sweep that no later one is larger than, or --gpu-memory would be a wish."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inferometer import LLM
from inferometer.engine import memory
from inferometer.engine.engine import Engine
from inferometer.engine.memory import rehearsed_lengths, worst_sweep_bytes
from tiny_models import tiny_model

PAGE = 16


@given(
    seats=st.integers(1, 300),
    sweep_tokens=st.integers(1, 20000),
    context_limit=st.none() | st.integers(2, 4096),
)
def test_a_rehearsal_fills_its_sweep(seats: int, sweep_tokens: int, context_limit: int | None) -> None:
    seats = min(seats, sweep_tokens)  # as `Batch` has them
    lengths = rehearsed_lengths(seats, sweep_tokens, context_limit)
    longest = sweep_tokens if context_limit is None else context_limit - 1
    assert sum(lengths) == min(sweep_tokens, seats * longest)
    assert min(lengths) >= 1
    assert max(lengths) <= longest
    assert len(lengths) <= seats
    if seats <= sweep_tokens // 2:
        assert len(lengths) == seats  # a new token is drawn for every one
    assert lengths[-1] == max(lengths) or lengths[-1] == sweep_tokens // 2


def test_short_contexts_fill_long_sweeps_too() -> None:
    """opt-30b's sweeps over a link: 2,048 positions, 13,568 tokens."""
    lengths = rehearsed_lengths(256, 13568, 2048)
    assert (sum(lengths), len(lengths), lengths[-1]) == (13568, 256, 2047)


class Card:
    """Counts what a GPU's allocator would: each sweep takes a thousand bytes a token while it runs, and an engine its cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 5000
        self.sweeps: list[int] = []
        step = Engine.step

        def stepped(engine: Engine) -> object:
            found = step(engine)
            if engine.sweep is not None:
                self.sweeps.append(engine.sweep.tokens)
                self.peak = max(self.peak, self.now + 1000 * engine.sweep.tokens)
            return found

        monkeypatch.setattr(Engine, "step", stepped)
        cuda = SimpleNamespace(
            synchronize=lambda device: None,
            memory_allocated=lambda device: self.now,
            max_memory_allocated=lambda device: self.peak,
            reset_peak_memory_stats=self.reset,
        )
        monkeypatch.setattr(memory, "torch", SimpleNamespace(cuda=cuda))

    def reset(self, device: torch.device) -> None:
        self.now = self.peak = self.now + self.cache_bytes

    cache_bytes = 0


@pytest.mark.parametrize(("seats", "sweep_tokens"), [(4, 64), (8, 200), (3, 129)])
def test_the_largest_sweep_there_can_be_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seats: int, sweep_tokens: int) -> None:
    with LLM(tiny_model(tmp_path, "bloom"), dtype="float32", device="cpu", weights="dummy") as llm:
        card = Card(monkeypatch)
        lengths = rehearsed_lengths(seats, sweep_tokens, llm.spec.context_limit)
        assert sum(lengths) == sweep_tokens
        pages = sum(-(-length // PAGE) for length in lengths)
        card.cache_bytes = 2 * pages * PAGE * llm.spec.kv_size * 4  # of one layer
        found = worst_sweep_bytes(llm.model, page_size=PAGE, seats=seats, sweep_tokens=sweep_tokens)
    assert max(card.sweeps) == sweep_tokens
    assert found == 1000 * sweep_tokens
