"""What the engine is held to on a GPU, measured with dummy weights in bfloat16; every bound is that of copy bandwidth and matrix rate as
measured in the same run. Prints tables, and appends one JSON object a measurement to the file given.

    python benchmarks/engine.py [--only gap|stream|groups] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inferometer import LLM, SamplingParams
from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.environment import environment
from inferometer.engine.engine import Engine
from inferometer.estimate.bound import bound
from inferometer.estimate.limits import Limits, limits
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats
from inferometer.model.spec import ModelSpec
from inferometer.model.step import decode, mixed
from inferometer.model.work import work
from inferometer.schedule.request import Request
from inferometer.schedule.sweep import Sweep

FORMATS = Formats(dtype="bfloat16")


class Watch:
    """Notes the sweeps that an engine launches: (new tokens, tokens before them) of each share."""

    def __init__(self, engine: Engine) -> None:
        self.sweeps: list[list[tuple[int, int]]] = []
        self._next = engine.scheduler.next
        engine.scheduler.next = self._note  # type: ignore[method-assign]

    def _note(self) -> Sweep | None:
        sweep = self._next()
        if sweep is not None:
            self.sweeps.append([(share.count, share.start) for share in sweep.shares])
        return sweep


def bound_ms(spec: ModelSpec, shares: Sequence[tuple[int, int]], ceilings: Limits) -> float:
    """The least time of one sweep."""
    prompts = [(count, start) for count, start in shares if count > 1 or start == 0]
    contexts = [start + 1 for count, start in shares if count == 1 and start]
    return bound(work(spec, mixed(prompts, contexts) if prompts else decode(contexts), FORMATS), ceilings).ms


def drain(engine: Engine) -> int:
    """Runs all that is queued; the tokens that came."""
    tokens = 0
    while engine.has_work:
        tokens += len(engine.step())
    return tokens


def gap(ceilings: Limits) -> dict[str, Any]:
    """Batch 1, doc004-1.3b: how long the GPU stands still between decode steps."""
    with LLM("doc004-1.3b", weights="dummy", dtype="bfloat16", device="cuda") as llm:
        engine = llm.engine

        def start(tokens: int) -> None:
            engine.clear()
            engine.add(Request(0, tuple(range(1, 129)), SamplingParams(max_new_tokens=tokens, ignore_eos=True), 0))
            for _ in range(4):
                engine.step()

        start(150)
        drain(engine)
        steps = []
        for _ in range(5):
            start(105)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                engine.step()
            torch.cuda.synchronize()
            steps.append((time.perf_counter() - begin) * 10)
            drain(engine)
        start(60)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(50):
                engine.step()
            torch.cuda.synchronize()
        seams = seam_us(profile)
        step_ms = statistics.median(steps)
        least = bound_ms(llm.spec, [(1, 178)], ceilings)
    return {
        "measured": "gap", "model": "doc004-1.3b", "batch_size": 1, "context": 178, "step_ms": step_ms, "steps_ms": steps,
        "bound_ms": least, "of_bound": least / step_ms, **seams, "gap_of_step": seams["gap_us_mean"] / 1000 / step_ms,
    }  # fmt: skip


def seam_us(profile: Any) -> dict[str, Any]:
    """From a profile of decode steps: the time in which nothing ran on the GPU around each step's one copy from the host.

    The copy opens a step. A seam reaches from the last kernel before it to the first one behind it; the gap is the seam without the copy.
    """
    on_gpu = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
    events = sorted((e.time_range.start, e.time_range.end, e.name) for e in on_gpu if e.time_range.end > e.time_range.start)
    gaps, idle = [], 0.0
    end = events[0][1]
    opened = []
    for place, (start, stop, name) in enumerate(events[1:], 1):
        idle += max(start - end, 0.0)
        end = max(end, stop)
        if "HtoD" in name and place + 1 < len(events):
            opened.append(place)
            before = max(stop for _, stop, _ in events[max(0, place - 8) : place])
            gaps.append(max(start - before, 0.0) + max(events[place + 1][0] - stop, 0.0))
    window = end - events[opened[0]][0]
    gaps = gaps[2:]
    return {
        "profiled_steps": len(gaps),
        "gap_us_mean": statistics.mean(gaps),
        "gap_us_max": max(gaps),
        "profiled_step_us": window / len(opened),
        "idle_us_a_step": idle / len(opened),
        "activities_a_step": len(events) / len(opened),
    }


def lognormal(generator: random.Random, mean: float, count: int) -> list[int]:
    """`count` lengths of the given mean before they are clipped to 8..1000; sigma 0.8."""
    mu = math.log(mean) - 0.8**2 / 2
    return [min(1000, max(8, round(generator.lognormvariate(mu, 0.8)))) for _ in range(count)]


def stream(ceilings: Limits, model: str = "opt-6.7b", count: int = 1000) -> dict[str, Any]:
    """1,000 requests at once through LLM.generate."""
    generator = random.Random(0)
    prompts = [[generator.randrange(4, 50000) for _ in range(length)] for length in lognormal(generator, 220, count)]
    params = [SamplingParams(max_new_tokens=length, ignore_eos=True) for length in lognormal(generator, 180, count)]
    with LLM(model, weights="dummy", dtype="bfloat16", device="cuda") as llm:
        llm.generate(prompts[:300], params[:300])  # compiles, and records graphs of most batch sizes
        engine = llm.engine
        engine.clear()
        engine.reset_peak()
        watch = Watch(engine)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        done = llm.generate(prompts, params)
        seconds = time.perf_counter() - begin
        assert [len(c.token_ids) for c in done] == [p.max_new_tokens for p in params]
        least = sum(bound_ms(llm.spec, sweep, ceilings) for sweep in watch.sweeps) / 1000
        # The mix whatever the order: as many sweeps as the longest request has tokens, each with its share of the rest.
        mix = ideal_s(llm.spec, [len(p) for p in prompts], [p.max_new_tokens for p in params], ceilings)
        return {
            "measured": "stream", "model": model, "requests": count, "prompt_tokens": sum(map(len, prompts)),
            "new_tokens": sum(p.max_new_tokens for p in params), "seconds": seconds, "bound_s": least, "of_bound": least / seconds,
            "mix_bound_s": mix, "of_mix_bound": mix / seconds, "tok_s": sum(p.max_new_tokens for p in params) / seconds,
            "sweeps": len(watch.sweeps), "mixed_sweeps": sum(any(n > 1 for n, _ in sweep) for sweep in watch.sweeps),
            "mean_batch": statistics.mean(len(sweep) for sweep in watch.sweeps), "pages": engine.pages, "pages_peak": engine.pages_peak,
            "preemptions": engine.scheduler.preemptions, "graphs": engine.recorded,
        }  # fmt: skip


def ideal_s(spec: ModelSpec, prompts: Sequence[int], new: Sequence[int], ceilings: Limits) -> float:
    """The bound of the mix if as few sweeps as possible did it: all prompts at once, then every sequence in every step until it ends."""
    total = bound(work(spec, mixed([(n, 0) for n in prompts], []), FORMATS), ceilings).ms
    for step in range(1, max(new)):
        total += bound(work(spec, decode([p + step for p, n in zip(prompts, new, strict=True) if n > step]), FORMATS), ceilings).ms
    return total / 1000


def groups(ceilings: Limits) -> list[dict[str, Any]]:
    """Document 000's job in both of its orders: opt-1.3b, 32 groups of 8 requests, 512 prompt tokens and 32 new ones."""
    generator = random.Random(0)
    prompts = [[generator.randrange(4, 50000) for _ in range(512)] for _ in range(256)]
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    found = []
    tokens: dict[str, list[list[int]]] = {}
    for order in ("zigzag", "diagonal", "continuous"):
        sizes = {} if order == "continuous" else {"group_size": 8, "num_groups": 32}
        with LLM("opt-1.3b", weights="dummy", dtype="bfloat16", device="cuda", admission=order, **sizes) as llm:
            engine = llm.engine
            page = engine.page_size
            runs = []
            for _ in range(4):
                engine.clear()
                engine.reset_peak()
                watch = Watch(engine)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                done = llm.generate(prompts, params)
                runs.append(time.perf_counter() - begin)
            tokens[order] = [c.token_ids for c in done]
            outside = torch.cuda.max_memory_allocated() - engine.pages * engine.page_bytes
            ages = [31] * 32 if order == "zigzag" else list(range(32))
            formula = None if order == "continuous" else sum(8 * -(-(512 + age) // page) for age in ages)
            least = sum(bound_ms(llm.spec, sweep, ceilings) for sweep in watch.sweeps) / 1000
            seconds = statistics.median(runs[1:])
            same = statistics.mean(ours == theirs for ours, theirs in zip(tokens[order], tokens["zigzag"], strict=True))
            record = {
                "measured": "groups", "order": order, "model": "opt-1.3b", "seconds": seconds, "runs_s": runs, "tok_s": 8192 / seconds,
                "bound_s": least, "of_bound": least / seconds, "sweeps": len(watch.sweeps), "pages_peak": engine.pages_peak,
                "pages_formula": formula, "peak_gib": (outside + engine.pages_peak * engine.page_bytes) / 2**30, "same_tokens": same,
            }  # fmt: skip
            found.append(record)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("gap", "stream", "groups"))
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    measured = calibrate("cuda", budget_s=4)
    assert measured.slug is not None
    device = find_device(measured.slug)
    assert device is not None
    ceilings = limits(device, measured)
    copy, rate = ceilings.memory_bytes_s, ceilings.matmul_flop_s("bfloat16")
    print(f"{measured.device_name}: copy {copy / 1e12:.2f} TB/s, bf16 {rate / 1e12:.0f} TFLOP/s")
    parts: dict[str, Callable[[Limits], Any]] = {"gap": gap, "groups": groups, "stream": stream}
    about = {
        "device_name": measured.device_name, "copy_bytes_s": copy, "bf16_flop_s": rate,
        "environment": environment(torch.device("cuda", 0)),
    }  # fmt: skip
    for name, part in parts.items():
        if arguments.only not in (None, name):
            continue
        found = part(ceilings)
        for record in found if isinstance(found, list) else [found]:
            for key, value in record.items():
                print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
            print()
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps({**record, **about}) + "\n")


if __name__ == "__main__":
    main()
