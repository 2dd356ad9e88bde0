"""What the server is held to, measured: HTTP with streaming against the engine without, on the same model in the same run. The server
(server_process.py), its client (server_client.py) and the engine alone (server_alone.py) are processes of their own. Dummy weights, byte
tokenizer. Prints what was found beside what is asked, and appends one JSON object a measurement to the file given.

    python benchmarks/server.py [--model opt-6.7b] [--dtype bfloat16] [--device cuda] [--only throughput|single|beside|cpu] [--output FILE]
    python benchmarks/server.py --small          # a tiny model on the processor, in a minute
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from server_alone import bare
from server_load import TINY, Plan, text, write_model
from server_process import Server, serving

from inferometer.bench.machine.environment import device_name, environment
from inferometer.model.description import describe

# What the issue of the server asks for.
LEAST_THROUGHPUT = 0.92
MOST_ITL = 1.05
MOST_TTFT_MS = 5.0
MOST_GAP = 3.0
MOST_CPU_US = 80.0


def throughput(plan: Plan, server: Server, alone: dict[str, Any]) -> dict[str, Any]:
    mix = plan.mix()
    server.stream("together", mix[: len(mix) // 3])
    spent = server.cpu_s()
    streams = server.stream("together", mix)
    spent = server.cpu_s() - spent
    seconds = max(tokens[-1] for _, tokens in streams) - min(sent for sent, _ in streams)
    count = sum(new for _, new in mix)
    return {
        "measured": "throughput", "requests": len(mix), "prompt_tokens": sum(len(prompt) for prompt, _ in mix), "new_tokens": count,
        "http_tok_s": count / seconds, "generate_tok_s": count / alone["generate_s"], "engine_tok_s": count / alone["engine_s"],
        "http_of_generate": alone["generate_s"] / seconds, "http_of_engine": alone["engine_s"] / seconds,
        "http_cpu_us_a_token": spent / count * 1e6, "asked": f"http_of_generate >= {LEAST_THROUGHPUT}",
        "met": alone["generate_s"] / seconds >= LEAST_THROUGHPUT,
    }  # fmt: skip


def single(plan: Plan, server: Server, alone: dict[str, Any]) -> dict[str, Any]:
    server.stream("one by one", [(text(random.Random(2), plan.single_prompt), plan.single_new)])
    streams = server.stream("one by one", [(prompt, plan.single_new) for prompt in plan.singles()])
    ttft = statistics.median((tokens[0] - sent) * 1e3 for sent, tokens in streams)
    itl = statistics.median(gap * 1e3 for _, tokens in streams for gap in gaps(tokens))
    over, ratio = ttft - alone["prefill_ms"], itl / alone["step_ms"]
    return {
        "measured": "single", "prompt_tokens": plan.single_prompt, "new_tokens": plan.single_new, "repeats": plan.repeats,
        "itl_ms": itl, "step_ms": alone["step_ms"], "itl_of_step": ratio, "ttft_ms": ttft, "prefill_ms": alone["prefill_ms"],
        "ttft_over_prefill_ms": over, "asked": f"itl_of_step <= {MOST_ITL}, ttft_over_prefill_ms <= {MOST_TTFT_MS}",
        "met": ratio <= MOST_ITL and over <= MOST_TTFT_MS,
    }  # fmt: skip


def beside(plan: Plan, server: Server) -> dict[str, Any]:
    """32 streams, and a long prompt in the middle: gaps from when all run until the first of them ends."""
    worst = []
    for repeat in range(plan.repeats // 2 or 1):
        generator = random.Random(100 + repeat)
        requests = [(text(generator, 64), plan.beside_new) for _ in range(32)] + [(text(generator, plan.long_prompt), 2)]
        *others, (sent, long) = server.stream("beside", requests, lead=plan.beside_new // 3)
        begin, end = max(tokens[0] for _, tokens in others), min(tokens[-1] for _, tokens in others)
        assert end > long[0], "the streams ended before the long prompt's first token: let them be longer"
        pairs = [pair for _, tokens in others for pair in pairwise(tokens) if begin <= pair[0] and pair[1] <= end]
        median = statistics.median(after - before for before, after in pairs)
        during = max(after - before for before, after in pairs if after >= sent and before <= long[0])
        quiet = max(after - before for before, after in pairs if after < sent or before > long[0])
        ratio = during / median if median else math.inf  # zero: most tokens were read together with the one before
        worst.append((ratio, during * 1e3, quiet * 1e3, median * 1e3, (long[0] - sent) * 1e3))
    ratio, longest, quiet_ms, median_ms, ttft_ms = max(worst)
    return {
        "measured": "beside", "streams": 32, "long_prompt": plan.long_prompt, "longest_of_median": ratio, "longest_gap_ms": longest,
        "median_gap_ms": median_ms, "longest_gap_without_ms": quiet_ms, "long_ttft_ms": ttft_ms, "all_ratios": [each[0] for each in worst],
        "asked": f"longest_of_median < {MOST_GAP}", "met": ratio < MOST_GAP,
    }  # fmt: skip


def gaps(tokens: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(tokens)]


def cpu(server: Server) -> dict[str, Any]:
    """What a streamed token costs the process that speaks HTTP; of a tiny model, with 64 clients."""
    generator = random.Random(3)
    requests = [(text(generator, 32), 300) for _ in range(64)]
    server.stream("together", requests)
    costs = []
    for _ in range(3):
        spent = server.cpu_s()
        server.stream("together", requests)
        costs.append((server.cpu_s() - spent) / (64 * 300) * 1e6)
    cost = statistics.median(costs)
    return {
        "measured": "cpu", "clients": 64, "tokens": 64 * 300, "cpu_us_a_token": cost, "all_us": costs,
        "asked": f"cpu_us_a_token <= {MOST_CPU_US:g}", "met": cost <= MOST_CPU_US,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="opt-6.7b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="a tiny model on the processor")
    parser.add_argument("--only", choices=("throughput", "single", "beside", "cpu"), action="append")
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    parts = arguments.only or ["throughput", "single", "beside", "cpu"]
    with tempfile.TemporaryDirectory() as scratch:
        tiny = Plan(write_model(Path(scratch, "tiny"), TINY), "float32", "cpu", 0.25, 60, 60, 60, 256, 100, 4, 1500, 600)
        if arguments.small:
            plan = tiny
        else:
            described = describe(arguments.model, config_only=True)
            folder = write_model(Path(scratch, "model"), dict(described.config))
            plan = Plan(folder, arguments.dtype, arguments.device, None, arguments.requests, 220, 180, 512, 256, 10, 2000, 600)
        name = "tiny" if arguments.small else arguments.model
        device = torch.device(plan.device)
        about = {"model": name, "dtype": plan.dtype, "device_name": device_name(device), "environment": environment(device)}

        def keep(record: dict[str, Any]) -> None:
            for key, value in record.items():
                print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
            print(flush=True)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps({**about, **record}) + "\n")

        if set(parts) - {"cpu"}:
            alone: dict[str, Any] = {}
            if {"throughput", "single"} & set(parts):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:  # so that its memory is free again for the server
                    alone = apart.submit(bare, plan, parts).result()
            with serving(plan) as server:
                if "throughput" in parts:
                    keep(throughput(plan, server, alone))
                if "single" in parts:
                    keep(single(plan, server, alone))
                if "beside" in parts:
                    keep(beside(plan, server))
        if "cpu" in parts:
            with serving(tiny) as server:
                keep({**cpu(server), "model": "tiny", "dtype": "float32", "device_name": device_name(torch.device("cpu"))})


if __name__ == "__main__":
    main()
