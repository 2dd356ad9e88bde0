"""The parts of benchmarks/quantization.py, each as one process measures it: decode steps, a prefill, bytes, kernels of a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from quantization_launches import FORMATS, words_for

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.machine.environment import environment
from inferometer.engine.engine import Engine
from inferometer.engine.tuning import tune
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted
from inferometer.schedule.request import Request
from kernels import fill, prompts, steps, timed_ms

MODEL = "opt-6.7b"
HF = "hf-int8"
STEPS = 40


def decode_ms(llm: LLM, rows: int, context: int, *, kv_dtype: torch.dtype | None = None, times: int = 4) -> float:
    """A decode step in which every row holds `context` tokens in the middle of the measurement."""
    start = context - STEPS // 2
    engine = Engine(
        llm.model, pages=rows * -(-(start + 2 * STEPS) // 16), seats=rows, sweep_tokens=16384, prefix_caching=False, kv_dtype=kv_dtype
    )
    asked, found = prompts(rows, start), []
    for _ in range(times):
        fill(engine, asked, 2 * STEPS)
        steps(engine, 6)
        found.append(timed_ms(lambda: steps(engine, STEPS - 6)) / (STEPS - 6))
    engine.close()
    return statistics.median(found[1:])


def prefill_ms(llm: LLM, rows: int, length: int) -> float:
    """Prompts in one sweep, to their first tokens."""
    engine = Engine(llm.model, pages=rows * -(-(length + 16) // 16), seats=rows, sweep_tokens=rows * length, prefix_caching=False)
    asked, params, found = prompts(rows, length), SamplingParams(max_new_tokens=1, ignore_eos=True), []

    def run() -> None:
        while engine.has_work:
            engine.step()

    for _ in range(5):
        engine.clear()
        for i, prompt in enumerate(asked):
            engine.add(Request(i, prompt, params, i))
        found.append(timed_ms(run))
    engine.close()
    return statistics.median(found[1:])


@torch.inference_mode()
def measure(part: str, profiled: bool, decode: bool) -> Iterator[dict[str, Any]]:
    """The records of a part; decode: without prefill."""
    about = {"part": part, "model": MODEL, "device_name": torch.cuda.get_device_name(), "environment": environment(torch.device("cuda", 0))}
    if part == HF:
        yield {**about, **hf_decode()}
        return
    name = FORMATS.get(part)  # none for kv
    llm = LLM(MODEL, weights="dummy", dtype="bfloat16", device="cuda", quantize=name)
    if part == "kv":
        for kv, dtype in (("bf16", None), ("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
            yield {**about, "measured": "kv", "format": kv, "ms": decode_ms(llm, 48, 1900, kv_dtype=dtype, times=3)}
        return
    tune(llm.model, (1, 16), seconds=60)
    yield {**about, "measured": "bytes", "format": part, "weight_bytes": llm.model.weight_bytes, "launches": launches_of(llm)}
    for rows in (1, 16):
        yield {**about, "measured": f"decode {rows}", "format": part, "ms": decode_ms(llm, rows, 128)}
    if not decode:
        yield {**about, "measured": "prefill", "format": part, "ms": prefill_ms(llm, 16, 1024)}
    if profiled:
        for rows in (1, 16):
            yield {**about, "measured": f"profile {rows}", "format": part, "kernels": profile(llm, rows)}


def hf_decode() -> dict[str, Any]:
    """The same decode step at batch 1 by transformers' own loop, its linear maps in bitsandbytes' LLM.int8."""
    described, device = describe(MODEL), torch.device("cuda", 0)
    with closing(open_source(described, weights="dummy")) as source:
        spec = fitted(described.spec, source, family(described.spec.family))
        backend = HFBackend(described.config, spec, source, device, torch.bfloat16, quantize="int8")
    found = []
    for _ in range(3):
        backend.prefill(prompts(1, 128 - STEPS // 2), SamplingParams(max_new_tokens=2 * STEPS, ignore_eos=True))
        for _ in range(6):
            backend.decode()
        found.append(timed_ms(lambda: [backend.decode() for _ in range(STEPS - 6)]) / (STEPS - 6))
        backend.finish()
    return {"measured": "decode 1", "format": HF, "ms": statistics.median(found), "stack_version": backend.stack_version}


def launches_of(llm: LLM) -> dict[str, dict[int, str]]:
    """What was chosen for the maps of a layer, and for the head."""
    layer = llm.model.layers[0]
    maps = {
        "qkv": layer.attention.qkv, "output": layer.attention.output, "up": layer.feed_forward.up, "down": layer.feed_forward.down,
        "head": llm.model.head,
    }  # fmt: skip
    return {name: {rows: words_for(launch) for rows, launch in each.launches.items()} for name, each in maps.items()}


def profile(llm: LLM, rows: int) -> dict[str, list[float]]:
    """By kernel: microseconds and launches of a decode step."""
    engine = Engine(llm.model, pages=rows * 14, seats=rows, sweep_tokens=16384, prefix_caching=False)
    fill(engine, prompts(rows, 108), 80)
    steps(engine, 6)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        steps(engine, 20)
        torch.cuda.synchronize()
    engine.close()
    taken: dict[str, list[float]] = {}
    for event in found.events():
        if str(event.device_type).endswith("CUDA"):
            entry = taken.setdefault(event.name[:60], [0.0, 0.0])
            entry[0] += event.time_range.elapsed_us() / 20
            entry[1] += 1 / 20
    return dict(sorted(taken.items(), key=lambda item: -item[1][0])[:12])
