"""Pages on the host and groups over a link, on a GPU: tokens against the resident engine, then full runs beside the link's bound.

    python benchmarks/offload_pages.py [--only tokens|pages|stream|grid]

Everything is dummy weights. The link is measured in the same process. Each run is whole: all requests, all tokens.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.machine.link_rate import copy_rate
from inferometer.errors import PointlessWarning
from inferometer.schedule.admission import admission

BEGAN = time.perf_counter()


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f}]", *words, flush=True)


def prompts(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    return [[(7 * row + 3 * i) % (vocabulary - 8) + 4 for i in range(length)] for row in range(rows)]


def tokens() -> None:
    """float32, opt-125m: every order and place gives the tokens of the resident engine."""
    rows = prompts(12, 70, 50272)
    params = [SamplingParams(max_new_tokens=12 + i, ignore_eos=True) for i in range(12)]
    expected: list[list[int]] | None = None
    places: list[dict[str, Any]] = [{}, {"offload": "pages"}, {"offload": "weights,pages"}, {"percent": "50 50 50 50 100 0"}]
    for where in places:
        for order in ("zigzag", "diagonal") if where else ("continuous",):
            options: dict[str, Any] = {} if order == "continuous" else {"group_size": 4}
            if where:
                options["host_memory"] = 2.0
            with LLM("opt-125m", weights="dummy", dtype="float32", device="cuda", admission=order, **where, **options) as llm:
                found = [completion.token_ids for completion in llm.generate(rows, params)]
                moved = [round(b / 2**20) for b in llm.engine.page_traffic_bytes]
            expected = expected or found
            equal = sum(ours == theirs for ours, theirs in zip(found, expected, strict=True))
            say(where, order, f"{equal} of {len(rows)} rows equal, pages moved MiB {moved}")


def run(backend: NativeBackend, rows: list[list[int]], new: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    backend.generate(rows, SamplingParams(max_new_tokens=new, ignore_eos=True, seed=0))
    backend.finish()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(llm: LLM, order: str, size: int, groups: int, requests: int, length: int, new: int, runs: int = 1) -> None:
    """One job: tokens/s, what came over the link, pages at the peak."""
    backend = NativeBackend(llm, admission(order, size, groups))
    backend.prepare(requests, length + new)
    rate = copy_rate(llm.device)
    for _ in range(runs):
        torch.cuda.reset_peak_memory_stats()
        before = backend.link_bytes or 0
        seconds = run(backend, prompts(requests, length, llm.spec.vocabulary), new)
        came = (backend.link_bytes or 0) - before
        engine = backend._running
        job = f"{llm.spec.name} {order} {requests} x ({length} + {new}), {size} a group, {groups} at once"
        link = f"link {came / seconds / 1e9:.2f} of {rate / 1e9:.2f} GB/s ({came / seconds / rate:.1%})"
        held = f"pages {engine.pages_peak} of {engine.pages} ({engine.device_pages} on the device)"
        peak = f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB; prompt tokens beside the link {llm.prompts_beside}"
        say(f"{job}: {requests * new / seconds:.1f} tok/s, {seconds:.2f} s; {link}; {held}; {peak}")
    backend.abandon()


def pages() -> None:
    """opt-6.7b, weights and pages on the host, 64 requests of 512 + 8: at least 95 tok/s."""
    with LLM("opt-6.7b", weights="dummy", dtype="bfloat16", device="cuda", offload="weights,pages", host_memory=40.0) as llm:
        measure(llm, "zigzag", 8, 8, 64, 512, 8, runs=2)
        measure(llm, "diagonal", 8, 8, 64, 512, 8)


def stream() -> None:
    """opt-6.7b, weights on the host, pages on the GPU."""
    with LLM("opt-6.7b", weights="dummy", dtype="bfloat16", device="cuda", offload="weights") as llm:
        for order in ("zigzag", "diagonal"):
            measure(llm, order, 4, 32, 128, 512, 32)
        measure(llm, "diagonal", 4, 32, 1024, 512, 32)
        measure(llm, "zigzag", 4, 32, 1024, 512, 32)


def grid() -> None:
    """Document 000 at its corners, all resident."""
    with LLM("opt-1.3b", weights="dummy", dtype="bfloat16", device="cuda") as llm:
        for groups, length in ((4, 128), (32, 128), (32, 512), (16, 1024), (4, 1024)):
            for order in ("zigzag", "diagonal"):
                measure(llm, order, 8, groups, 8 * groups, length, 32, runs=4)


PARTS = {"tokens": tokens, "pages": pages, "grid": grid, "stream": stream}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    warnings.simplefilter("ignore", PointlessWarning)
    for name in parser.parse_args().only or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
