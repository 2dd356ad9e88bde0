"""Warming up: sweeps of every size that there are graphs for are run, three times each, and nothing of it is left."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from inferometer.engine.engine import Engine
from inferometer.engine.llm import LLM
from inferometer.engine.sweep_graphs import rows_bucket
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.emission import Emission
from inferometer.server.warm_up import Recording, settle, warm_up
from tiny_models import tiny_model


class Watched(Engine):
    """Counts its sweeps: (sequences that decode, tokens of prompts, whether any context is beyond 512)."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.seen: Counter[tuple[int, int, bool]] = Counter()
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def step(self) -> list[Emission]:
        emissions = super().step()
        if self.sweep is not None:
            decoding = [share for share in self.sweep.shares if share.decodes]
            rest = sum(share.count for share in self.sweep.shares if not share.decodes)
            self.seen[(len(decoding), rest, any(share.start + 1 > 512 for share in decoding))] += 1
        return emissions


def engine(folder: Path, *, seats: int, pages: int, positions: int, sweep_tokens: int = 512, prompt_tokens: int | None = None) -> Watched:
    path = tiny_model(folder, "llama", max_position_embeddings=positions)
    llm = LLM(path, dtype="float32", device="cpu", weights="dummy", gpu_memory=0.25)
    order = Continuous(prompt_tokens=prompt_tokens)
    return Watched(llm.model, pages=pages, seats=seats, sweep_tokens=sweep_tokens, admission=order)


def test_every_size_is_run_three_times(tmp_path: Path) -> None:
    watched = engine(tmp_path, seats=12, pages=256, positions=1024)
    Recording(watched, 1024).run()
    sizes = {rows_bucket(rows) for rows in range(1, 13)}
    for long in (False, True):
        for size in sizes:
            assert sum(n for (rows, rest, at), n in watched.seen.items() if not rest and rows_bucket(rows or 1) == size and at == long) >= 3
        for rows in (8, 11):
            for tokens in (64, 128, 256):
                assert watched.seen[(rows, tokens, long)] >= 3, (rows, tokens, long)
            assert watched.seen[(rows, 512 - rows, long)] >= 3
    for tokens in (64, 128, 256, 512):
        assert watched.seen[(0, tokens, False)] >= 3


def test_prompts_beside_others_are_run_as_long_as_they_may_be_and_alone_as_long_as_a_sweep(tmp_path: Path) -> None:
    watched = engine(tmp_path, seats=12, pages=256, positions=1024, sweep_tokens=700, prompt_tokens=128)
    Recording(watched, 1024).run()
    for rows in (8, 11):
        sizes = {rest for decoding, rest, _ in watched.seen if decoding == rows and rest}
        assert sizes == {16, 32, 64, 128}
    assert {rest for decoding, rest, long in watched.seen if not decoding and rest > 64 and not long} >= {128, 256, 384, 512, 700}
    assert not any(rest == 640 for _, rest, _ in watched.seen)  # that size is not recorded


@pytest.mark.parametrize(("seats", "pages", "positions", "total"), [(1, 4, 64, 64), (2, 1, 16, 16), (3, 40, 600, 600), (64, 2, 512, 32)])
def test_small_engines_are_warmed_up_as_well(tmp_path: Path, seats: int, pages: int, positions: int, total: int) -> None:
    watched = engine(tmp_path, seats=seats, pages=pages, positions=positions)
    Recording(watched, total).run()
    warm_up(watched, total)
    assert not watched.has_work
    assert watched.scheduler.pool.in_use == 0


def test_what_there_is_by_then_is_not_looked_through_again(tmp_path: Path) -> None:
    llm = LLM(tiny_model(tmp_path, "llama"), dtype="float32", device="cpu", weights="dummy")
    kept = [[number] for number in range(5_000)]
    assert len(gc.get_objects()) > 5_000
    settle(llm)
    assert len(gc.get_objects()) < 1_000
    assert len(kept) == 5_000
