"""What an edge between two launches costs beside one between two rounds of a single launch: python benchmarks/launch_edges.py.

2,048 numbers of 16 bits, in words of eight bytes: every program reads all of them, and writes a part of what the next round reads. A word
that has not come is -1. Times are of graphs of ROUNDS rounds, less what it takes to empty the words.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from inferometer.kernels.support import capability, constexpr, early, kernel, tl, usable

ROUNDS, WORDS, WARPS = 200, 512, 8
PROGRAMS = (32, 128, 256, 512)


@kernel()
def _wait(x: Any, y: Any, words: constexpr, each: constexpr, early: constexpr) -> None:
    """Begins when the launch ahead has ended, or early and waits for that."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = tl.arange(0, words)
    mine = (i >= tl.program_id(0) * each) & (i < (tl.program_id(0) + 1) * each)
    tl.store(y + i, tl.load(x + i) + 1, mask=mine)


@kernel()
def _poll(x: Any, y: Any, words: constexpr, each: constexpr, early: constexpr) -> None:
    """Begins early, and looks at the data until all have come."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.arange(0, words)
    value = tl.load(x + i, volatile=True)
    while tl.max((value == -1).to(tl.int32)) != 0:
        value = tl.load(x + i, volatile=True)
    mine = (i >= tl.program_id(0) * each) & (i < (tl.program_id(0) + 1) * each)
    tl.store(y + i, value + 1, mask=mine)


@kernel()
def _poll_rounds(x: Any, count: Any, rounds: Any, words: constexpr, each: constexpr) -> None:
    """All rounds in one launch, whose programs look at the data."""
    i = tl.arange(0, words)
    mine = (i >= tl.program_id(0) * each) & (i < (tl.program_id(0) + 1) * each)
    for turn in range(rounds):
        value = tl.load(x + turn * words + i, volatile=True)
        while tl.max((value == -1).to(tl.int32)) != 0:
            value = tl.load(x + turn * words + i, volatile=True)
        tl.store(x + (turn + 1) * words + i, value + 1, mask=mine)


@kernel()
def _count_rounds(x: Any, count: Any, rounds: Any, words: constexpr, each: constexpr) -> None:
    """All rounds in one launch, whose programs count who has ended a round."""
    i = tl.arange(0, words)
    mine = (i >= tl.program_id(0) * each) & (i < (tl.program_id(0) + 1) * each)
    for turn in range(rounds):
        value = tl.load(x + turn * words + i, cache_modifier=".cg")
        tl.store(x + (turn + 1) * words + i, value + 1, mask=mine)
        tl.debug_barrier()
        tl.atomic_add(count, 1, sem="release", scope="gpu")
        wanted = (turn + 1) * tl.num_programs(0)
        while tl.atomic_add(count, 0, sem="acquire", scope="gpu") < wanted:
            pass
        tl.debug_barrier()


def microseconds(run: Callable[[], None]) -> float:
    """The median of five replays of what is recorded as a graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def measure(programs: int) -> None:
    x = torch.empty(ROUNDS + 1, WORDS, dtype=torch.int64, device="cuda")
    count = torch.zeros(1, dtype=torch.int64, device="cuda")
    sizes = {"words": WORDS, "each": WORDS // programs, "num_warps": WARPS}

    def empty() -> None:
        x.fill_(-1)
        x[0] = 0
        count.zero_()

    def chain(one: Any, options: dict[str, bool]) -> None:
        empty()
        for turn in range(ROUNDS):
            one.launch((programs,), x[turn], x[turn + 1], **sizes, **options)

    def rounds(one: Any) -> None:
        empty()
        one.launch((programs,), x, count, ROUNDS, **sizes)

    ways: dict[str, Callable[[], None]] = {
        "a launch after another": lambda: chain(_wait, {"early": False}),
        "begun early, waits": lambda: chain(_wait, early(x.device)),
        "begun early, polls": lambda: chain(_poll, early(x.device)),
        "one launch, polls": lambda: rounds(_poll_rounds),
        "one launch, counts": lambda: rounds(_count_rounds),
    }
    alone = microseconds(empty)
    for name, run in ways.items():
        took = (microseconds(run) - alone) / ROUNDS
        run()
        assert bool((x[-1] == ROUNDS).all()), name
        print(f"{programs:4} programs, {name:22} {took:5.2f} us", flush=True)


def main() -> int:
    if not torch.cuda.is_available() or not usable(torch.device("cuda", 0)) or capability(torch.device("cuda", 0)) < (9, 0):
        print("needs a CUDA device of compute capability 9.0 or higher, and triton", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), flush=True)
    for programs in PROGRAMS:
        measure(programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
