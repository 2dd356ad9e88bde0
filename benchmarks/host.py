"""What the host does for a step of the engine, by stage, with a model that computes nothing: python benchmarks/host.py [--device cuda].

Rows take the best token and no token ends them. A sweep goes the way of recorded graphs; on the CPU their functions run instead, and
what they take counts as the model's. "start" is from the first `add` until the sweep of all prompts is launched, without the model.
Times are means over a run's steps, of the best of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from inferometer.engine.captured_sampler import SamplerGraphs
from inferometer.engine.engine import PAGE_SIZE, Engine
from inferometer.engine.flight import Flight
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
STAGES = ("schedule", "launch", "take")


class Nothing:
    """Where a Transformer is expected: scores of zero, at once."""

    def __init__(self, spec: ModelSpec, device: torch.device, clock: Clock) -> None:
        self.spec, self.device, self.dtype, self._clock = spec, device, torch.bfloat16, clock
        self._hidden = torch.zeros(1, 1, device=device)

    def sweep(self, batch: RaggedBatch, cache: PagedCache | None = None) -> Tensor:
        with self._clock.excluded():
            return self._hidden.expand(batch.token_ids.numel(), 1)

    def logits(self, hidden: Tensor) -> Tensor:
        with self._clock.excluded():
            return hidden.expand(-1, self.spec.vocabulary).to(self.dtype)


@dataclass
class Clock:
    """Seconds by stage; what is excluded counts nowhere."""

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*STAGES, "wait", "other"), 0.0))
    left_out: float = 0.0

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin, out = time.perf_counter(), self.left_out
            try:
                return function(*arguments)
            finally:
                self.spent[stage] += time.perf_counter() - begin - (self.left_out - out)

        return call

    @contextmanager
    def excluded(self) -> Iterator[None]:
        begin, out = time.perf_counter(), self.left_out
        try:
            yield
        finally:
            self.left_out = out + time.perf_counter() - begin

    def excluding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self.excluded():
                return function(*arguments)

        return call


def engine_of(rows: int, device: torch.device, clock: Clock) -> Engine:
    """An engine whose stages are timed. As a benchmark's: no prefix cache."""
    spec = replace(describe("doc004-1.3b", config_only=True).spec, layers=1, vocabulary=8)
    model = cast(Transformer, Nothing(spec, device, clock))
    pages = rows * -(-(PROMPT + NEW) // PAGE_SIZE)
    engine = Engine(model, pages=pages, seats=rows, sweep_tokens=max(8192, rows), prefix_caching=False, lookahead=1)
    runner: Any = engine._running
    if device.type == "cpu":
        runner._graphs = SweepGraphs(model, runner.cache, runner._tokens, runner._table, None)
        runner._samplers = SamplerGraphs(device)
        runner._graphs._sweep = clock.excluding(runner._graphs._sweep)
        runner._run = clock.excluding(runner._run)
    untyped: Any = engine
    untyped.scheduler.next = clock.timed("schedule", engine.scheduler.next)
    runner.launch = clock.timed("launch", runner.launch)
    untyped._land = clock.timed("take", untyped._land)
    return engine


def run(rows: int, device: torch.device) -> tuple[float, dict[str, float]]:
    """Seconds from the first request to the launch of the prompts' sweep, and seconds of a decode step by stage."""
    clock = Clock()
    engine = engine_of(rows, device, clock)
    params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    prompts = [[1 + (row + i) % 7 for i in range(PROMPT)] for row in range(rows)]
    starts = []
    for _ in range(3):
        begin, out = time.perf_counter(), clock.left_out
        for row, prompt in enumerate(prompts):
            engine.add(Request(row, tuple(prompt), params, row))
        engine.step()
        starts.append(time.perf_counter() - begin - (clock.left_out - out))
        engine.drain()
        engine.clear()
    for row, prompt in enumerate(prompts):
        engine.add(Request(row, tuple(prompt), params, row))
    for _ in range(3):
        engine.step()
    clock.spent = dict.fromkeys(clock.spent, 0.0)
    read = Flight.read
    Flight.read = clock.timed("wait", clock.excluding(read))  # type: ignore[method-assign]
    steps = NEW - 4
    begin, out = time.perf_counter(), clock.left_out
    tokens = 0
    for _ in range(steps):
        for emission in engine.step():
            tokens += emission.token_id >= 0
    whole = time.perf_counter() - begin - (clock.left_out - out)
    Flight.read = read  # type: ignore[method-assign]
    assert tokens == steps * rows
    engine.close()
    spent = {stage: clock.spent[stage] / steps for stage in STAGES}
    spent["caller"] = whole / steps - sum(spent.values())
    return min(starts), spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    stages = (*STAGES, "caller")
    print(f"{'rows':>5} {'start us':>9} {'a row':>6} {'step us':>8} {'a row':>6}  " + " ".join(f"{stage + ' us':>11}" for stage in stages))
    for rows in arguments.rows:
        runs = [run(rows, device) for _ in range(arguments.runs)]
        start = min(start for start, _ in runs) * 1e6
        spent = min((spent for _, spent in runs), key=lambda spent: sum(spent.values()))
        step = sum(spent.values()) * 1e6
        parts = " ".join(f"{spent[stage] * 1e6:11.1f}" for stage in stages)
        print(f"{rows:5} {start:9.0f} {start / rows:6.2f} {step:8.1f} {step / rows:6.2f}  {parts}")


if __name__ == "__main__":
    main()
