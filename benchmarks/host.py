"""What the host does for a step of the engine, by stage, with a model that computes nothing: python benchmarks/host.py [--device cuda].

Rows take the best token and no token ends them. A sweep goes the way of recorded graphs; on the CPU their functions run instead, and
what they take counts as the model's, as does waiting for a GPU. "start" is from the first `add` until the sweep of all prompts is
launched, "step" the mean of as many decode steps as a page has tokens; each the best of several, in CPU time of the one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.engine import Engine
from inferometer.engine.flight import Flight
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.engine.sweep_graphs import SweepGraphs
from inferometer.model.description import describe
from inferometer.model.spec import ModelSpec
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

ROWS = (1, 16, 256, 1024)
PROMPT = 8
NEW = 100
STEPS = 16
"""Steps whose mean is taken: all rows begin a page in one of them."""
MODEL = "model"
"""The stage that is not the host's work."""


class Clock:
    """Seconds by stage, each without those inside it."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Counts from nothing, in the caller's own stage."""
        self.spent: dict[str, float] = {}
        self._stage, self._since = "caller", time.thread_time()

    def enter(self, stage: str) -> str:
        """What comes now belongs to `stage`; returns the one before."""
        now, before = time.thread_time(), self._stage
        self.spent[before] = self.spent.get(before, 0.0) + now - self._since
        self._stage, self._since = stage, now
        return before

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            before = self.enter(stage)
            try:
                return function(*arguments, **named)
            finally:
                self.enter(before)

        return call

    def read(self, stages: Sequence[str]) -> dict[str, float]:
        """Seconds of each since the restart."""
        self.enter("caller")
        return {stage: self.spent.get(stage, 0.0) for stage in stages}


class Nothing(Transformer):
    """Its layers compute nothing: hidden states of zero at once, after which all tokens are alike."""

    def __init__(self, spec: ModelSpec, device: torch.device, clock: Clock) -> None:
        super().__init__(spec, device, torch.bfloat16)
        for parameter in self.parameters():
            parameter.zero_()
        for name in ("unnormed", "logits", "choose"):
            setattr(self, name, clock.timed(MODEL, getattr(self, name)))

    def unnormed(self, batch: RaggedBatch, cache: PagedCache | None = None) -> tuple[Tensor, None]:
        return torch.zeros(batch.token_ids.numel(), self.spec.hidden, dtype=self.dtype, device=self.device), None


def engine_of(rows: int, device: torch.device, clock: Clock) -> Engine:
    """An engine whose stages are timed. As a benchmark's: no prefix cache."""
    spec = replace(describe("doc004-1.3b", config_only=True).spec, layers=1, vocabulary=8)
    model = Nothing(spec, device, clock)
    pages = rows * -(-(PROMPT + NEW) // PAGE_SIZE)
    engine: Any = Engine(model, pages=pages, seats=rows, sweep_tokens=max(8192, rows), prefix_caching=False, lookahead=1)
    runner: Any = engine._running
    if device.type == "cpu":
        runner._graphs = SweepGraphs(model, runner.cache, runner._tokens, runner._table, None)
        runner._samplers = SamplerGraphs(device)
        runner._graphs._sweep = clock.timed(MODEL, runner._graphs._sweep)
        runner._run = clock.timed(MODEL, runner._run)
    engine.add = clock.timed("add", engine.add)
    engine.scheduler.next = clock.timed("schedule", engine.scheduler.next)
    runner.launch = clock.timed("launch", runner.launch)
    runner._align = clock.timed("sampler", runner._align)
    runner._finish = clock.timed("sampler", runner._finish)
    engine._land = clock.timed("take", engine._land)
    found: Engine = engine
    return found


def run(rows: int, device: torch.device) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Seconds by stage: from the first request until the prompts' sweep is launched, and of decode steps, sixteen together."""
    clock = Clock()
    engine = engine_of(rows, device, clock)
    params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    prompts = [[1 + (row + i) % 7 for i in range(PROMPT)] for row in range(rows)]
    starts, steps = [], []
    read = Flight.read
    Flight.read = clock.timed(MODEL, read) if device.type == "cuda" else read  # type: ignore[method-assign]
    for _ in range(4):
        clock.restart()
        for row, prompt in enumerate(prompts):
            engine.add(Request(row, tuple(prompt), params, row))
        engine.step()
        starts.append(clock.read(("caller", "add", "schedule", "launch", "sampler")))
        for _ in range(3):
            engine.step()
        for _ in range((NEW - 4) // STEPS):
            clock.restart()
            tokens = 0
            for _ in range(STEPS):
                for emission in engine.step():
                    tokens += emission.token_id >= 0
            assert tokens == STEPS * rows
            steps.append(
                {stage: seconds / STEPS for stage, seconds in clock.read(("caller", "schedule", "launch", "sampler", "take")).items()}
            )
        engine.drain()
        engine.clear()
    Flight.read = read  # type: ignore[method-assign]
    engine.close()
    return starts[1:], steps


def total(spent: dict[str, float]) -> float:
    return sum(spent.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    tables: dict[str, list[tuple[int, dict[str, float]]]] = {"start": [], "step": []}
    for rows in arguments.rows:
        runs = [run(rows, device) for _ in range(arguments.runs)]
        for part, found in zip(tables, zip(*runs, strict=True), strict=True):
            tables[part].append((rows, min(chain(*found), key=total)))
    for part, lines in tables.items():
        print(f"{'rows':>5} {part + ' us':>9} {'a row':>7} " + " ".join(f"{stage:>9}" for stage in lines[0][1]))
        for rows, spent in lines:
            whole = total(spent) * 1e6
            print(f"{rows:5} {whole:9.1f} {whole / rows:7.2f} " + " ".join(f"{seconds * 1e6:9.1f}" for seconds in spent.values()))


if __name__ == "__main__":
    main()
