"""How close the attention kernels come to what the GPU can do: python benchmarks/attention_kernels.py [--sweep] [--only TEXT].

Decode is bound by memory: its rate stands beside the copy rate, prefill's beside the rate of a matrix product, both measured here.
Every case is checked against the reference before it is timed. Times are of CUDA graphs in which as many layers with pools of
their own follow each other as it takes that no key is in the L2 cache from the time before.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

import torch
from attention_cases import CASES, DTYPE, Decode, Prefill
from attention_launches import Choice, choices
from attention_runs import check, compile_ahead, launches, pools, torchs_own
from gpu_clock import begin, milliseconds


@dataclass(frozen=True)
class Clock:
    started: float = field(default_factory=time.monotonic)

    @property
    def passed(self) -> float:
        """Seconds."""
        return time.monotonic() - self.started


def report(case: Decode | Prefill, choice: Choice, ms: float, copy: float, gemm: float) -> None:
    if isinstance(case, Decode):
        rate = case.bytes / ms / 1e6
        print(f"{case.name:40} {ms * 1e3:9.1f} us {rate:8.0f} GB/s    {rate / copy:6.1%} of copy   {choice}", flush=True)
    else:
        rate = case.flops / ms / 1e9
        print(f"{case.name:40} {ms * 1e3:9.1f} us {rate:8.0f} TFLOP/s {rate / gemm:6.1%} of GEMM   {choice}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--sweep", action="store_true", help="try other launches too")
    parser.add_argument("--seconds", type=float, default=80, help="start no further launch of a sweep after so long (%(default)s)")
    for name in ("block", "warps", "stages", "queries", "parts"):
        parser.add_argument(f"--{name}", type=int, help="instead of the table's")
    options = parser.parse_args()
    found = begin(DTYPE)
    copy, gemm = found.copy_gb_s, found.gemm_tflop_s
    clock = Clock()
    plan = [(case, choices(case, options)) for case in CASES if options.only in case.name]
    if options.sweep:
        with ProcessPoolExecutor(min(8, os.cpu_count() or 1), mp_context=get_context("spawn")) as workers:
            for case, tried in plan:
                for half in (tried[::2], tried[1::2]):
                    workers.submit(compile_ahead, case, half)
        print(f"compiled after {clock.passed:.0f} s", flush=True)
    left_out = 0
    for case, tried in plan:
        torch.manual_seed(0)
        held = pools(case)
        tokens = sum(count for count, _ in case.rows) if isinstance(case, Prefill) else len(case.contexts)
        query = torch.randn(tokens, case.heads, case.head_size, dtype=DTYPE, device="cuda")
        for i, choice in enumerate(tried):
            if i and clock.passed > options.seconds:
                left_out += 1
                continue
            try:
                runs = launches(case, held, query, choice)
                check(case, held[0], query, runs[0]())
                report(case, choice, milliseconds(runs), copy, gemm)
            except Exception as error:  # in a sweep, that a launch does not fit the card is a result
                if not options.sweep:
                    raise
                print(f"{case.name:40} {type(error).__name__}: {str(error).splitlines()[0][:80]}   {choice}", flush=True)
        if isinstance(case, Prefill) and (ms := torchs_own(case, held[0], query)) is not None:
            print(f"{'':40} {ms * 1e3:9.1f} us {case.flops / ms / 1e9:8.0f} TFLOP/s is torch's own, keys side by side", flush=True)
        del held, query
    if left_out:
        print(f"{left_out} launches of the sweep were left out for time; --seconds gives more", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
