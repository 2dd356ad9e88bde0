"""What the kernels are held to on a GPU: whole steps of whole models, dummy weights in bfloat16, each beside its bound.

    python benchmarks/kernels.py [--only decode|sizes] [--profile] [--tuning-seconds S] [--output FILE]

The bound is that of copy bandwidth and matrix rate as measured in the same run. Prints tables, and appends one JSON object a
measurement to the file given. Prefill and the sweep over batch sizes, beside transformers, are `inferometer bench`'s.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import torch
from deployed import beside, deployed

from inferometer import LLM, SamplingParams
from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.environment import environment
from inferometer.engine.engine import Engine
from inferometer.engine.tuning import launches_known, tune
from inferometer.estimate.deployment import Deployment
from inferometer.kernels.skinny_choice import bucket
from inferometer.model.formats import Formats
from inferometer.model.step import decode
from inferometer.schedule.request import Request

FORMATS = Formats(dtype="bfloat16")
DECODES = (("doc004-1.3b", 1, 128), ("opt-6.7b", 1, 1024), ("opt-6.7b", 16, 576))
SIZES = tuple(f"gpt3-{size}" for size in ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b"))
STEPS = 40


def loaded(model: str) -> LLM:
    return LLM(model, weights="dummy", dtype="bfloat16", device="cuda")


def prompts(count: int, length: int, vocabulary: int = 50000) -> list[tuple[int, ...]]:
    generator = random.Random(0)
    return [tuple(generator.randrange(4, vocabulary) for _ in range(length)) for _ in range(count)]


def engine_for(llm: LLM, rows: int, tokens: int, seconds: float) -> Engine:
    """An engine with as many pages as `rows` sequences of `tokens` tokens take, and nothing that they could share.

    seconds: for measuring launches that are not on file.
    """
    tune(llm.model, (bucket(rows),), seconds=seconds)
    pages = rows * -(-tokens // 16)
    return Engine(llm.model, pages=pages, seats=rows, sweep_tokens=max(16384, rows), prefix_caching=False)


def fill(engine: Engine, asked: list[tuple[int, ...]], new: int) -> None:
    """Takes the prompts to the point where all decode."""
    engine.clear()
    params = SamplingParams(max_new_tokens=new, ignore_eos=True)
    sequences = [engine.add(Request(i, prompt, params, i)) for i, prompt in enumerate(asked)]
    while not all(sequence.launched for sequence in sequences):
        engine.step()


def timed_ms(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def decode_case(llm: LLM, rows: int, context: int, where: Deployment, *, profiled: bool, seconds: float) -> dict[str, Any]:
    """A decode step in which every row holds `context` tokens in the middle of the measurement."""
    start = context - STEPS // 2
    engine = engine_for(llm, rows, start + 2 * STEPS, seconds)
    known = launches_known(llm.model, rows)
    asked = prompts(rows, start)
    times = []
    for _ in range(4):
        fill(engine, asked, 2 * STEPS)
        steps(engine, 6)
        times.append(timed_ms(lambda: steps(engine, STEPS - 6)) / (STEPS - 6))
    step_ms = statistics.median(times[1:])
    record = {
        "measured": "decode", "model": llm.spec.name, "batch_size": rows, "context": context, "step_ms": step_ms, "steps_ms": times,
        "launches_measured": None if known is None else f"{known[0]} of {known[1]}",
        **beside(where, decode([context] * rows), step_ms),
    }  # fmt: skip
    if profiled:
        record |= kernels_of(engine, asked)
    engine.close()
    return record


def kernels_of(engine: Engine, asked: list[tuple[int, ...]]) -> dict[str, Any]:
    """What runs on the GPU in a step: launches, time by kernel, idle time between them."""
    fill(engine, asked, 2 * STEPS)
    steps(engine, 6)
    torch.cuda.synchronize()
    count = 20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps(engine, count)
        torch.cuda.synchronize()
    on_gpu = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in on_gpu)
    taken: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    busy, end = 0.0, spans[0][0]
    for begin, stop, name in spans:
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
        taken[name[:60]] += stop - begin
        launches[name[:60]] += 1
    return {
        "launches": len(spans) / count,
        "profiled_us": (end - spans[0][0]) / count,
        "busy_us": busy / count,
        "kernels": {name: [round(us / count, 2), launches[name] / count] for name, us in taken.most_common(14)},
        "layer_us": layer_of([(begin, stop, name[:60]) for begin, stop, name in spans]),
    }


def layer_of(spans: list[tuple[float, float, str]]) -> list[tuple[str, float]]:
    """What a layer's launches add to the time, from attention on: of each the mean time from the end of the launch before to its own end.

    A launch that begins early lies beside the one before, so that its own duration says little. spans: begin, end and name.
    """
    ended = sorted((stop, name) for _, stop, name in spans)
    marks = [i for i, (_, name) in enumerate(ended) if "attend" in name]
    if len(marks) < 3:
        return []
    period = statistics.mode(after - before for before, after in pairwise(marks))
    firsts = [before for before, after in pairwise(marks) if after - before == period and before]
    layer = []
    for slot in range(period):
        added = [ended[first + slot][0] - ended[first + slot - 1][0] for first in firsts]
        layer.append((ended[firsts[-1] + slot][1], round(statistics.mean(added), 2)))
    return layer


def report(record: dict[str, Any]) -> None:
    print(
        f"{record['model']:12} x {record['batch_size']:3} at {record['context']:5}: {record['step_ms']:7.3f} ms, bound "
        f"{record['bound_ms']:7.3f} ms ({record['of_bound']:.1%}, {record['times_bound']:.3f}x, {record['binds']}), predicted "
        f"{record['predicted_ms']:7.3f} ms ({record['predicted_ms'] / record['step_ms'] - 1:+.1%})",
        flush=True,
    )
    if "sizes_limit_ms" in record:
        limit = record["sizes_limit_ms"]
        print(f"             1.08 x bound + 15 us x layers + 30 us = {limit:.3f} ms: {'kept' if record['step_ms'] <= limit else 'MISSED'}")
    if "kernels" in record:
        print(f"  {record['launches']:.1f} launches, profiled {record['profiled_us']:.0f} us, busy {record['busy_us']:.0f} us")
        for name, (us, launches) in record["kernels"].items():
            print(f"    {us:8.2f} us {launches:6.1f} x {us / launches:7.2f} us  {name}")
        print("  a layer: " + ", ".join(f"{name} {us:.2f} us" for name, us in record["layer_us"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("decode", "sizes"))
    parser.add_argument("--case", action="append", metavar="MODEL:ROWS:CONTEXT", help="instead: decode steps of this one; repeatable")
    parser.add_argument("--profile", action="store_true", help="also say which kernels take the time")
    parser.add_argument("--tuning-seconds", type=float, default=60.0, help="for launches that are not on file (default 60; 0: the table's)")
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    measured = calibrate("cuda", budget_s=4)
    copy, rate = measured.copy_bandwidth_bytes_s, dict(measured.matmul_flop_s)["bfloat16"]
    print(f"{measured.device_name}: copy {copy / 1e12:.2f} TB/s, bf16 {rate / 1e12:.0f} TFLOP/s", flush=True)
    about = {
        "device_name": measured.device_name, "copy_bytes_s": copy, "bf16_flop_s": rate,
        "environment": environment(torch.device("cuda", 0)), "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    if not arguments.tuning_seconds:
        about["means"] = (
            "Decode steps of whole models with the launches that the table gives: none was measured on the card before "
            "(`--tuning-seconds 0`)."
        )
    wanted: dict[str, list[tuple[str, int, int]]] = {}
    for case in arguments.case or ():
        model, rows, context = case.rsplit(":", 2)
        wanted.setdefault(model, []).append(("decode", int(rows), int(context)))
    if not arguments.case and arguments.only != "sizes":
        for model, rows, context in DECODES:
            wanted.setdefault(model, []).append(("decode", rows, context))
    if not arguments.case and arguments.only != "decode":
        for model in SIZES:
            wanted.setdefault(model, []).extend(("sizes", rows, 768) for rows in (4, 16))
    for model, cases in wanted.items():
        with loaded(model) as llm:
            where = deployed(llm.spec, measured, FORMATS)
            for kind, rows, context in cases:
                record = decode_case(llm, rows, context, where, profiled=arguments.profile, seconds=arguments.tuning_seconds)
                if kind == "sizes":
                    record |= {"measured": "sizes", "sizes_limit_ms": 1.08 * record["bound_ms"] + 0.015 * llm.spec.layers + 0.03}
                report(record)
                if arguments.output:
                    with open(arguments.output, "a") as file:
                        file.write(json.dumps({**record, **about}) + "\n")


if __name__ == "__main__":
    main()
