"""What --deterministic costs on a GPU, and whether it keeps its word: dummy weights in bfloat16, plain and deterministic in one run.

    python benchmarks/deterministic.py [--model NAME] [--output FILE]

Decode steps at batch 1, 16 and 128, prefill of 8 x 1024 tokens, each beside the bound of the copy bandwidth and matrix rate measured in
the same run; and 128 prompts of random lengths, some of which then run alone: how many get the same tokens and log-probabilities.
Prints a table a model, and appends one JSON object a measurement to the file given.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from typing import Any

import torch

from inferometer import LLM, SamplingParams
from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.environment import environment
from inferometer.engine.engine import Engine
from inferometer.engine.tuning import tune
from inferometer.estimate.bound import bound
from inferometer.estimate.limits import Limits, limits
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats
from inferometer.model.step import decode, mixed
from inferometer.model.work import work
from inferometer.nn.invariant import KernelProduct
from inferometer.nn.linear import Linear
from inferometer.schedule.completion import Completion
from inferometer.schedule.request import Request

FORMATS = Formats(dtype="bfloat16")
CONTEXTS = {"doc004-1.3b": {1: 128, 16: 128, 128: 128}, "opt-6.7b": {1: 1024, 16: 576, 128: 576}}
STEPS, REPEATS = 40, 5
PREFILL = (8, 1024)
PROMPTS, ALONE = 128, 16


def prompts(count: int, length: int) -> list[tuple[int, ...]]:
    generator = random.Random(0)
    return [tuple(generator.randrange(4, 50000) for _ in range(length)) for _ in range(count)]


def engine_for(llm: LLM, rows: int, tokens: int) -> Engine:
    return Engine(llm.model, pages=rows * -(-tokens // 16), seats=rows, sweep_tokens=16384, prefix_caching=False)


def decode_ms(llm: LLM, rows: int, context: int) -> float:
    """Of a step: the median of a few times STEPS steps, from `context` tokens on."""
    new = 2 * STEPS
    engine = engine_for(llm, rows, context + new)
    times = []
    for _ in range(REPEATS + 1):
        engine.clear()
        params = SamplingParams(max_new_tokens=new, ignore_eos=True)
        sequences = [engine.add(Request(row, prompt, params, row)) for row, prompt in enumerate(prompts(rows, context))]
        while not all(sequence.launched for sequence in sequences):
            engine.step()
        for _ in range(6):  # seen twice, a sweep is recorded
            engine.step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            engine.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000 / STEPS)
    assert engine.recorded > 0
    engine.close()
    return statistics.median(times[1:])


def prefill_ms(llm: LLM, rows: int, length: int) -> float:
    """Of all prompts and a first token of each."""
    engine = engine_for(llm, rows, length)
    times = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for row, prompt in enumerate(prompts(rows, length)):
            engine.add(Request(row, prompt, SamplingParams(max_new_tokens=1, ignore_eos=True), row))
        while engine.has_work:
            engine.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    engine.close()
    return statistics.median(times[2:])


def word_kept(llm: LLM) -> dict[str, Any]:
    """Of ALONE prompts at random places among PROMPTS: how many get the same tokens, and log-probabilities equal to the bit, alone."""
    draw = random.Random(1)
    asked = [[draw.randrange(4, 50000) for _ in range(draw.randint(1, 300))] for _ in range(PROMPTS)]
    params = SamplingParams(max_new_tokens=32, ignore_eos=True, prompt_logprobs=True)
    runs = [llm.generate(asked, params) for _ in range(2)]  # the second time from cached prefixes, and as graphs
    tokens = bits = 0
    for place in draw.sample(range(PROMPTS), ALONE):
        llm.engine.clear()
        own = llm.generate([asked[place]], params)[0]
        tokens += all(run[place].token_ids == own.token_ids for run in runs)
        bits += all(_bits(run[place]) == _bits(own) for run in runs)
    return {"prompts": PROMPTS, "alone": ALONE, "same_tokens": tokens, "same_bits": bits}


def _bits(completion: Completion) -> tuple[Any, ...]:
    return completion.token_ids, completion.logprobs, completion.prompt_logprobs


def measure(model: str, deterministic: bool, ceilings: Limits) -> dict[str, Any]:
    found: dict[str, Any] = {"measured": "deterministic", "model": model, "deterministic": deterministic}
    with LLM(model, weights="dummy", dtype="bfloat16", device="cuda", deterministic=deterministic) as llm:
        tune(llm.model, seconds=60)
        for rows, context in CONTEXTS[model].items():
            least = bound(work(llm.spec, decode([context + 6 + STEPS // 2] * rows), FORMATS), ceilings).ms
            step = decode_ms(llm, rows, context)
            found |= {f"decode_{rows}_context": context, f"decode_{rows}_ms": step, f"decode_{rows}_of_bound": least / step}
        rows, length = PREFILL
        least = bound(work(llm.spec, mixed([(length, 0)] * rows, []), FORMATS), ceilings).ms
        whole = prefill_ms(llm, rows, length)
        found |= {"prefill": f"{rows} x {length}", "prefill_ms": whole, "prefill_of_bound": least / whole}
        found |= word_kept(llm)
        forms = [len(m.product.forms) for m in llm.model.modules() if isinstance(m, Linear) and isinstance(m.product, KernelProduct)]
        found["forms_that_agree"] = min(forms) if forms else None
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(CONTEXTS), action="append", help="repeatable (default: all)")
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    measured = calibrate("cuda", budget_s=4)
    assert measured.slug is not None
    device = find_device(measured.slug)
    assert device is not None
    ceilings = limits(device, measured)
    copy, rate = ceilings.memory_bytes_s, ceilings.matmul_flop_s("bfloat16")
    print(f"{measured.device_name}: copy {copy / 1e12:.2f} TB/s, bf16 {rate / 1e12:.0f} TFLOP/s")
    about = {
        "device_name": measured.device_name, "copy_bytes_s": copy, "bf16_flop_s": rate,
        "environment": environment(torch.device("cuda", 0)),
    }  # fmt: skip
    for model in arguments.model or CONTEXTS:
        plain, fixed = (measure(model, deterministic, ceilings) for deterministic in (False, True))
        for name, value in fixed.items():
            cost = f"  x {value / plain[name]:.2f}" if name.endswith("_ms") else ""
            print("  ".join(f"{_figure(v):>12}" for v in (plain[name], value)), f" {name}{cost}", flush=True)
        if arguments.output:
            with open(arguments.output, "a") as file:
                for record in (plain, fixed):
                    file.write(json.dumps({**record, **about}) + "\n")


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
