"""Cases of a fake model over batch sizes, run as a benchmark runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from fake_backend import VOCABULARY, Clock, FakeBackend

from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.measurement.column import Unopened
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.measurement.runner import Runner
from inferometer.bench.prediction.outlook import Outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record


class Count:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, count: int = 1) -> None:
        self.done += count


def sweep(
    backends: Mapping[str, FakeBackend | Unopened],
    *,
    batch_sizes: tuple[int, ...] = (1, 2),
    runs: int = 3,
    warmups: int = 1,
    clock: Clock | None = None,
    decode_length: int | None = 5,
    context_limit: int | None = None,
    progress: Count | None = None,
    prompts_for: Callable[[int, int], list[list[int]]] = lambda batch_size, length: random_prompts(0, batch_size, length, VOCABULARY),
    outlook_of: Callable[[Case], Outlook] = lambda case: Outlook(),
    **case: Any,
) -> list[Record]:
    """The records of all cases, a round a batch size, which come out as they are returned. `case`: further fields of Case."""
    rounds = [
        [
            Case(
                model="fake",
                backend=name,
                dtype="float32",
                device="cpu",
                batch_size=size,
                sequence_length=6,
                decode_length=decode_length,
                forward_only=decode_length is None,
                **case,
            )
            for name in backends
        ]
        for size in batch_sizes
    ]
    reference = backends.get("hf")
    runner = Runner(
        backends,
        prompts_for,
        Effort(runs, warmups),
        reference=reference if isinstance(reference, FakeBackend) else None,
        device=torch.device("cpu"),
        dtype=torch.float32,
        context_limit=context_limit,
        outlook_of=outlook_of,
        clock=clock or Clock(),
        progress=progress,
    )
    emitted: list[Record] = []
    records = runner.run(rounds, emitted.append)
    assert emitted == records
    return records


def out_of_memory_at(size: int, where: str = "prefill") -> Any:
    """A failure for a fake backend: out of memory in one of its calls, at one batch size."""

    def fail(what: str, rows: int) -> None:
        if rows == size and what == where:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    return fail
