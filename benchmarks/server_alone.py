"""What the engine does without a server, for `benchmarks/server.py` to hold the server against."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from server_load import Plan

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.schedule.request import Request
from inferometer.server.engine_process import serving_engine
from inferometer.server.warm_up import warm_up


def say(what: str, since: float) -> None:
    print(f"{what}: {time.perf_counter() - since:.1f} s", file=sys.stderr, flush=True)


def bare(plan: Plan, parts: Sequence[str]) -> dict[str, Any]:
    """What the engine does by itself: the mix through LLM.generate and through the engine as the server sets it up, and single requests."""
    found: dict[str, Any] = {}
    settings = plan.settings
    begin = time.perf_counter()
    with LLM(plan.folder, weights="dummy", dtype=plan.dtype, device=plan.device, gpu_memory=plan.gpu_memory) as llm:
        say("loaded", begin)
        if "throughput" in parts:
            prompts = [prompt for prompt, _ in plan.mix()]
            params = [SamplingParams(max_new_tokens=new) for _, new in plan.mix()]
            warm = len(prompts) // 3
            llm.generate(prompts[:warm], params[:warm])  # compiles, and records graphs
            llm.engine.clear()
            say("a third of the requests through LLM.generate, and what was first loaded", begin)
            begin = time.perf_counter()
            done = llm.generate(prompts, params)
            found["generate_s"] = time.perf_counter() - begin
            say("all through LLM.generate", begin)
            assert [len(each.token_ids) for each in done] == [each.max_new_tokens for each in params]
            llm.close()
        begin = time.perf_counter()
        engine = serving_engine(llm, settings)
        warm_up(engine, settings.total_tokens)
        found["warm_up_s"] = time.perf_counter() - begin
        say("an engine as the server's, warmed up", begin)
        if "throughput" in parts:
            for number, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
                engine.add(Request(number, tuple(prompt.encode()), own, 0))
            begin = time.perf_counter()
            while engine.has_work:
                engine.step()
            found["engine_s"] = time.perf_counter() - begin
            say("all through it", begin)
        if "single" in parts:
            found |= single_steps(engine, plan)
    return found


def single_steps(engine: Engine, plan: Plan) -> dict[str, Any]:
    """Requests alone: milliseconds to the first token, and between tokens."""
    firsts, gaps = [], []
    for prompt in plan.singles():
        engine.clear()
        engine.add(Request(0, tuple(prompt.encode()), SamplingParams(max_new_tokens=plan.single_new), 0))
        last = begin = time.perf_counter()
        while engine.has_work:
            if engine.step():
                now = time.perf_counter()
                (firsts if last == begin else gaps).append((now - last) * 1e3)
                last = now
    return {"prefill_ms": statistics.median(firsts), "step_ms": statistics.median(gaps)}
