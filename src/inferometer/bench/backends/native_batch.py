"""A batch of the native backend: its rows in an engine, and what every step of it has brought."""

from __future__ import annotations

import time
from itertools import chain

from inferometer.bench.backends.backend import Prompts
from inferometer.engine.engine import Engine
from inferometer.schedule.emission import Emissions
from inferometer.schedule.request import Request, request_seed
from inferometer.schedule.sampling import SamplingParams


class NativeBatch:
    """A batch in progress: one request a prompt, all added when it is made, under the number of its row.

    begun: after `run`, seconds since the batch was made until every row had its first token, and the tokens that there were by then.
    Raises RequestTooLargeError for prompts that the engine's pages can never hold.
    """

    def __init__(self, engine: Engine, prompts: Prompts, params: SamplingParams) -> None:
        self.begun: tuple[float, int] | None = None
        self._made = time.perf_counter()
        self._engine = engine
        engine.reset_peak()
        self._steps: list[Emissions] = []  # looked into when the clock stands
        self.sequences = [
            engine.add(Request(row, tuple(prompt), params, request_seed(params.seed or 0, row))) for row, prompt in enumerate(prompts)
        ]

    def step(self) -> None:
        """One sweep."""
        self._steps.append(self._engine.step())

    def prefill(self) -> None:
        """Sweeps until the last row's first token is launched."""
        for sequence in self.sequences:
            while not sequence.launched:
                self.step()

    def run(self) -> None:
        """Sweeps until all tokens of all rows are launched."""
        rows, first = self.sequences, 0
        for sequence in rows:
            while sequence.remaining:
                self.step()
                while first < len(rows) and rows[first].generated:
                    first += 1
                if first == len(rows) and self.begun is None:
                    self.begun = time.perf_counter() - self._made, sum(row.generated for row in rows)

    def end(self) -> list[list[tuple[int, float]]]:
        """The tokens of every row and their log-probabilities; the engine has nothing to do then."""
        steps = [*self._steps, self._engine.drain()]
        self._engine.clear()
        rows: list[list[tuple[int, float]]] = [[] for _ in self.sequences]
        for emission in chain(*steps):
            rows[emission.request_id].append((emission.token_id, emission.logprob))
        return rows
