"""Runs a job of offloaded generation in one order, and says what came of it beside its yardsticks."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from host_link import GIB, LinkRates
from offload_jobs import Job, Part
from offload_yardsticks import expected_tok_s, formula_bytes, formula_pages, least_seconds


class Watch:
    """Notes what every sweep of an engine runs: (new tokens, tokens before them) of each share."""

    def __init__(self, engine: Any) -> None:
        self.sweeps: list[list[tuple[int, int]]] = []
        self._next = engine.scheduler.next
        engine.scheduler.next = self._note

    def _note(self) -> Any:
        sweep = self._next()
        if sweep is not None:
            self.sweeps.append([(share.count, share.start) for share in sweep.shares])
        return sweep


def run_job(llm: Any, part: Part, job: Job, order: str, link: LinkRates, calibration: Any) -> dict[str, Any]:
    """One job in one order: its figures beside the bound of the sweeps that ran, and what was expected."""
    import torch

    from inferometer import SamplingParams
    from inferometer.engine.loaded_part import DeviceLimits
    from inferometer.engine.sizes import SEATS

    generator = random.Random(0)
    prompts = [[generator.randrange(4, llm.spec.vocabulary) for _ in range(job.prompts)] for _ in range(job.requests)]
    llm._limits = DeviceLimits(job.gpu_memory, llm._limits.fraction)  # the weights lie where they lie under any of a part's limits
    llm.reorder(order, job.group_size, job.num_groups)
    gc.collect()  # the run before holds its cache in a circle
    torch.cuda.reset_peak_memory_stats()
    engine = llm.engine
    made = torch.cuda.max_memory_allocated()
    residency = llm.model.residency
    whole = part.runs > 1
    together = min(
        job.requests, engine.pages // -(-(job.prompts + job.new - 1) // engine.page_size), (job.num_groups or SEATS) * job.group_size
    )

    def once(rows: Sequence[Sequence[int]], new: int) -> float:
        engine.clear()  # nothing is found by its beginning
        torch.cuda.synchronize()
        begin = time.perf_counter()
        done = llm.generate(rows, SamplingParams(max_new_tokens=new, ignore_eos=True))
        torch.cuda.synchronize()
        assert all(len(each.token_ids) == new for each in done)
        return time.perf_counter() - begin

    # The peak is over all runs: what passes through a sweep that is recorded shows where it runs for the first time, kernel by kernel.
    torch.cuda.reset_peak_memory_stats()
    engine.reset_peak()
    # In diagonal order twice: what comes up once in a run is recorded when it comes up again.
    untimed = 2 if whole and order == "diagonal" else 1
    first = [once(prompts, job.new) if whole else once(prompts[:together], 3) for _ in range(untimed)]
    at_rest = torch.cuda.memory_allocated() - engine.device_pages * engine.page_bytes
    watch, before = Watch(engine), getattr(residency, "brought_bytes", 0)
    paged = engine.page_traffic_bytes[0]
    times = [once(prompts, job.new) for _ in range(part.runs)]
    seconds = median(times)
    sweeps = watch.sweeps[: len(watch.sweeps) // part.runs]
    came = getattr(residency, "brought_bytes", 0) - before + engine.page_traffic_bytes[0] - paged
    least, links = least_seconds(llm, sweeps, link, calibration)
    allocated = torch.cuda.max_memory_allocated()
    on_device = min(engine.pages_peak, engine.device_pages)
    tokens = job.requests * job.new
    expected = expected_tok_s(llm, job, order, calibration)
    pages = formula_pages(job, order, engine.page_size) if whole else None
    peak = allocated - engine.device_pages * engine.page_bytes + on_device * engine.page_bytes
    formula = None if pages is None else formula_bytes(llm, sweeps, at_rest, pages * engine.page_bytes)
    return {
        "job": job.name, "order": order, "tok_s": tokens / seconds, "expected_tok_s": expected, "bound_tok_s": tokens / least,
        "of_bound": least / seconds, "off_expected": None if expected is None else abs(tokens / seconds / expected - 1),
        "flexgen_tok_s": job.flexgen, "of_flexgen": None if job.flexgen is None else tokens / seconds / job.flexgen,
        "link_gb_s": came / sum(times) / 1e9, "link_copies_gb_s": link.bytes_in_s / 1e9, "of_link": links / seconds, "seconds": seconds,
        "sweeps": len(sweeps), "pages_peak": engine.pages_peak, "pages_formula": pages, "peak_gib": peak / GIB,
        "peak_formula_gib": None if formula is None else formula / GIB, "off_formula": None if formula is None else abs(peak / formula - 1),
        "limit_gib": job.gpu_memory, "allocated_gib": max(made, allocated) / GIB,
        "asked": {"gate": job.gates[order], "ahead": job.ahead}, "runs_s": times, "first_s": first,
        "pool": {"pages": engine.pages, "on_device": engine.device_pages},
    }  # fmt: skip
