"""What offloaded generation is held to on a GPU: full runs with dummy weights in bfloat16, each beside its estimate and the least that
the link, the matrix units and the memory leave, all measured in the same call. Prints a table; appends one JSON object a run to --output.

    python benchmarks/offload.py [--only PART ...] [--order ORDER] [--seconds S] [--output FILE]

Every part is a process of its own with a time limit, so that one that hangs or runs out of memory costs nobody else. What compiles and
records does so in runs before the timed ones: whole ones of jobs that are short, else of the same prompts with three new tokens.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Job:
    """Requests in the orders given. flexgen: what the published package did there, tokens/s. gates: tokens/s by order that are asked for,
    or shares of the bound below 1; None for any. ahead: by how much diagonal is to be faster than zigzag."""

    prompts: int
    new: int
    requests: int
    group_size: int
    num_groups: int | None
    gates: dict[str, float | None]
    flexgen: float | None = None
    ahead: float | None = None

    @property
    def name(self) -> str:
        """As it is printed."""
        groups = f", {self.num_groups} x {self.group_size} in flight" if self.num_groups else ""
        return f"{self.requests} of {self.prompts} + {self.new}{groups}"


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs of one loaded model. means: what it is, as the results call it. offload, gpu_memory: as LLM's. seconds: the part's time limit.
    runs: timed ones, of which the median counts."""

    means: str
    model: str
    jobs: tuple[Job, ...]
    offload: str | None = None
    gpu_memory: float | None = None
    host_memory: float | None = None
    seconds: float = 195.0
    runs: int = 1


FLEXGEN = {(4, 512): 455.0, (8, 512): 526.0, (16, 512): 499.0, (32, 512): 471.0, (16, 128): 535.0, (16, 1024): 317.0}
"""Tokens/s of the published package, by groups and prompt tokens, on an H100 with the same jobs; the other cells were not measured."""


def _cell(groups: int, prompts: int) -> Job:
    flexgen = FLEXGEN.get((groups, prompts))
    gate = None if flexgen is None else 10 * flexgen
    return Job(prompts, 32, 8 * groups, 8, groups, {"zigzag": gate, "diagonal": gate}, flexgen, ahead=0.97)


# Groups of one request where memory is short: as many as fit, not a multiple of more.
PARTS = {
    "grid": Part(
        "document 000's grid, all on the GPU",
        "opt-1.3b",
        tuple(_cell(groups, prompts) for prompts in (512, 128, 1024, 256) for groups in (4, 8, 16, 32)),
        runs=3,
    ),
    "streamed": Part(
        "all weights streamed",
        "opt-6.7b",
        (
            Job(512, 32, 128, 8, None, {"zigzag": 430, "diagonal": 430}, 284.0),
            Job(512, 32, 1024, 4, 32, {"zigzag": 430, "diagonal": 480}),
        ),
        "weights",
        seconds=230,
    ),
    "streamed-pages": Part(
        "weights and pages on the host",
        "opt-6.7b",
        (Job(512, 8, 64, 8, None, {"zigzag": 95, "diagonal": 95}, 47.0),),
        "weights,pages",
    ),
    "half": Part("0.4 of the weights streamed", "opt-6.7b", (Job(512, 32, 128, 8, None, {"zigzag": 0.85}),), "weights:0.4"),
    "opt-30b-24": Part(
        "all weights streamed, 24 GiB of GPU memory",
        "opt-30b",
        (Job(512, 32, 128, 1, None, {"zigzag": 0.85, "diagonal": 0.85}, ahead=0.98),),
        "weights",
        24,
        seconds=450,
    ),
    "opt-30b-76": Part(
        "all weights streamed, 76 GiB of GPU memory",
        "opt-30b",
        (Job(512, 32, 400, 1, None, {"zigzag": 0.85, "diagonal": 0.85}, ahead=1.04),),
        "weights",
        76,
        seconds=450,
    ),
}


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second between pinned host memory and the device: in, out, and both at once together."""

    bytes_in_s: float
    bytes_out_s: float
    bytes_both_s: float


def measure_link(size: int = GIB, repeats: int = 5) -> LinkRates:
    """As large copies go."""
    import torch

    from inferometer.nn.host_buffer import HostBuffer

    device = torch.device("cuda", 0)
    here, there = [HostBuffer(size, device) for _ in range(2)], [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def rate(*ways: str) -> float:
        def once() -> None:
            if "in" in ways:
                with torch.cuda.stream(streams[0]):
                    there[0].copy_(here[0].tensor, non_blocking=True)
            if "out" in ways:
                with torch.cuda.stream(streams[1]):
                    here[1].tensor.copy_(there[1], non_blocking=True)

        once()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            once()
        torch.cuda.synchronize()
        return len(ways) * repeats * size / (time.perf_counter() - begin)

    found = LinkRates(rate("in"), rate("out"), rate("in", "out"))
    for buffer in here:
        buffer.close()
    return found


def grow_host_memory(wanted: int, step: int = 2 * GIB, spare: int = 8 * GIB, patience_s: float = 20) -> None:
    """Takes memory step by step and lets it go, until `wanted` bytes are free or the machine has no more.

    A virtual machine may show a part of what it can have, and be given more as that is taken: the check that a model's weights fit into
    the host's memory would refuse one for which there is room.
    """
    from inferometer.hardware.host_memory import free_host_bytes

    held: list[mmap.mmap] = []
    while len(held) * step + free_host_bytes() < wanted:
        begin = time.perf_counter()
        while (free := free_host_bytes()) < spare + step and time.perf_counter() < begin + patience_s:
            time.sleep(0.05)
        if free < spare + step:
            break
        held.append(mmap.mmap(-1, step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        held[-1].madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, step, mmap.PAGESIZE):
            held[-1][at] = 1
    for taken in held:
        taken.close()


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


def run_part(name: str, output: str | None, order: str | None = None) -> None:
    """Loads the part's model, runs its jobs in their orders, or in one, and prints and stores a record of each."""
    import torch

    from inferometer import LLM
    from inferometer.bench.machine.calibrate import calibrate
    from inferometer.bench.machine.environment import environment
    from inferometer.errors import PointlessWarning
    from inferometer.hardware.calibration import save_calibration
    from inferometer.hardware.detect import detect
    from inferometer.model.description import describe
    from inferometer.model.footprint import resident_weight_bytes
    from inferometer.model.formats import Formats

    part = PARTS[name]
    warnings.simplefilter("ignore", PointlessWarning)
    calibration = calibrate("cuda", budget_s=3)
    save_calibration(calibration, detect().fingerprint)  # the engine asks how many prompt tokens the link hides
    link = measure_link()
    if part.offload is not None:
        # Half as much again: other parts may run beside this one.
        grow_host_memory(int(1.5 * resident_weight_bytes(describe(part.model, config_only=True).spec, Formats(dtype="bfloat16"))))
    begin = time.perf_counter()
    llm = LLM(
        part.model, weights="dummy", dtype="bfloat16", device="cuda", offload=part.offload, gpu_memory=part.gpu_memory,
        host_memory=part.host_memory,
    )  # fmt: skip
    machine = {
        "device_name": calibration.device_name,
        "copy_bytes_s": calibration.copy_bandwidth_bytes_s,
        "bf16_flop_s": dict(calibration.matmul_flop_s).get("bfloat16"),
        "about": {"part": name, "loaded_s": time.perf_counter() - begin, **asdict(link)},
        "environment": environment(torch.device("cuda", 0)),
    }
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        if output:
            with open(output, "a") as file:
                file.write(json.dumps(record) + "\n")

    measured = f"{part.model}: {part.means}"
    for job in part.jobs:
        for each in job.gates if order is None else (order,):
            record = {"measured": measured, **_run(llm, part, job, each, link, calibration), **machine}
            record["of_zigzag"] = _beside_zigzag(record, records)
            print(_line(record), flush=True)
            keep(record)
    llm.close()


def _beside_zigzag(record: dict[str, Any], records: Sequence[dict[str, Any]]) -> float | None:
    """Its rate over that of the same job in zigzag order, where that ran."""
    if record["order"] == "zigzag":
        return None
    same = [other["tok_s"] for other in records if (other["measured"], other["job"]) == (record["measured"], record["job"])]
    return record["tok_s"] / same[-1] if same else None


def _worst(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What every cell is held to, of the cell that is furthest from it."""

    def of(name: str) -> list[float]:
        return [record[name] for record in records if record[name] is not None]

    about = ("device_name", "copy_bytes_s", "bf16_flop_s", "about", "environment")
    return {
        "measured": f"{records[0]['measured']}: the worst of all cells",
        "cells": len({record["job"] for record in records}),
        "least_of_flexgen": min(of("of_flexgen"), default=None), "least_of_zigzag": min(of("of_zigzag"), default=None),
        "most_off_formula": max(of("off_formula")), "most_off_expected": max(of("off_expected"), default=None),
        "pages_as_the_formula": all(record["pages_peak"] == record["pages_formula"] for record in records),
        **{name: records[0][name] for name in about},
    }  # fmt: skip


def _run(llm: Any, part: Part, job: Job, order: str, link: LinkRates, calibration: Any) -> dict[str, Any]:
    """One job in one order: its figures beside the bound of the sweeps that ran, and what was expected."""
    import torch

    from inferometer import SamplingParams
    from inferometer.engine.engine import SEATS

    generator = random.Random(0)
    prompts = [[generator.randrange(4, llm.spec.vocabulary) for _ in range(job.prompts)] for _ in range(job.requests)]
    llm.reorder(order, job.group_size, job.num_groups)
    engine = llm.engine
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
    least, links = _least(llm, sweeps, link, calibration)
    outside = torch.cuda.max_memory_allocated() - engine.device_pages * engine.page_bytes
    on_device = min(engine.pages_peak, engine.device_pages)
    tokens = job.requests * job.new
    expected = _expected(llm, job, order, calibration)
    pages = _formula_pages(job, order, engine.page_size) if whole else None
    peak = outside + on_device * engine.page_bytes
    formula = None if pages is None else _formula_bytes(llm, sweeps, at_rest, pages * engine.page_bytes)
    return {
        "job": job.name, "order": order, "tok_s": tokens / seconds, "expected_tok_s": expected, "bound_tok_s": tokens / least,
        "of_bound": least / seconds, "off_expected": None if expected is None else abs(tokens / seconds / expected - 1),
        "flexgen_tok_s": job.flexgen, "of_flexgen": None if job.flexgen is None else tokens / seconds / job.flexgen,
        "link_gb_s": came / sum(times) / 1e9, "link_copies_gb_s": link.bytes_in_s / 1e9, "of_link": links / seconds, "seconds": seconds,
        "sweeps": len(sweeps), "pages_peak": engine.pages_peak, "pages_formula": pages, "peak_gib": peak / GIB,
        "peak_formula_gib": None if formula is None else formula / GIB, "off_formula": None if formula is None else abs(peak / formula - 1),
        "limit_gib": part.gpu_memory, "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "asked": {"gate": job.gates[order], "ahead": job.ahead}, "runs_s": times, "first_s": first,
        "pool": {"pages": engine.pages, "on_device": engine.device_pages},
    }  # fmt: skip


def _formula_pages(job: Job, order: str, page_size: int) -> int:
    """The most pages that are held at once, of a job whose groups are all in flight together: in zigzag order they all grow to their
    limits together, in diagonal order each is a token behind the group before it."""
    assert job.num_groups is not None
    assert job.num_groups * job.group_size == job.requests
    last = job.prompts + job.new - 1  # the last token is never run
    if order == "zigzag":
        return job.requests * -(-last // page_size)
    held = [-(-tokens // page_size) for tokens in range(job.prompts, last + 1)]  # by sweeps since it entered
    return job.group_size * max(
        sum(held[sweep - group] for group in range(job.num_groups) if 0 <= sweep - group < job.new)
        for sweep in range(job.num_groups + job.new)
    )


def _formula_bytes(llm: Any, sweeps: Sequence[Sequence[tuple[int, int]]], at_rest: int, pages: int) -> int:
    """What is there at rest (weights, inputs of graphs, workspaces), the pages, and what passes through a layer of the longest sweep."""
    from inferometer.estimate.memory import Workload, activation_bytes
    from inferometer.estimate.stack import find_stack
    from inferometer.model.formats import Formats

    tokens = max(sum(count for count, _ in shares) for shares in sweeps)
    passing = activation_bytes(llm.spec, Formats(dtype="bfloat16"), find_stack("native"), Workload(batch=1, length=tokens))
    return at_rest + pages + passing


def _least(llm: Any, sweeps: Sequence[Sequence[tuple[int, int]]], link: LinkRates, calibration: Any) -> tuple[float, float]:
    """Seconds in which the sweeps that ran could have: each waits for the slower of link and device; and those of the link alone."""
    from inferometer.estimate.bound import bound
    from inferometer.estimate.limits import limits
    from inferometer.hardware.catalogue import find_device
    from inferometer.model.formats import Formats, kv_bytes_per_token
    from inferometer.model.step import decode, mixed
    from inferometer.model.work import work

    formats = Formats(dtype="bfloat16")
    ceilings = limits(find_device(calibration.slug), calibration)
    placement = getattr(llm.model.residency, "placement", None)
    weights = 0 if placement is None else placement.streamed_bytes
    offload = llm._storage.offload
    token_bytes = offload.pages * kv_bytes_per_token(llm.spec, formats)
    total = coming = 0.0
    for shares in sweeps:
        prompts = [(count, start) for count, start in shares if count > 1 or start == 0]
        contexts = [start + 1 for count, start in shares if count == 1 and start]
        device = bound(work(llm.spec, mixed(prompts, contexts) if prompts else decode(contexts), formats), ceilings).ms / 1e3
        comes = weights + token_bytes * sum(start for _, start in shares)
        goes = token_bytes * sum(count for count, _ in shares)
        carried = max(comes / link.bytes_in_s, goes / link.bytes_out_s, (comes + goes) / link.bytes_both_s)
        total += max(device, carried)
        coming += carried
    return total, coming


def _expected(llm: Any, job: Job, order: str, calibration: Any) -> float | None:
    """The estimator's tokens/s: of as many requests at a time as there are pages for."""
    from inferometer.errors import UserError
    from inferometer.estimate import estimate

    each = -(-(job.prompts + job.new - 1) // llm.engine.page_size)
    room = max(1, llm.engine.pages // each // job.group_size)
    groups = min(room, job.num_groups or -(-job.requests // job.group_size))
    blocks = -(-job.requests // (groups * job.group_size)) if order == "zigzag" else 1
    asked = {"batch_size": min(job.requests, groups * job.group_size) if blocks > 1 else job.requests, "num_groups": groups}
    try:
        found = estimate(
            llm.description, calibration.slug, sequence_length=job.prompts, decode_length=job.new, dtype="bfloat16", admission=order,
            group_size=job.group_size, offload=llm._storage.offload.name, calibration=calibration, **asked,
        )  # fmt: skip
    except UserError:
        return None
    return None if found.total_ms is None else job.requests * job.new / (blocks * found.total_ms / 1e3)


def _line(record: dict[str, Any]) -> str:
    expected = "" if record["expected_tok_s"] is None else f", expected {record['expected_tok_s']:,.0f}"
    formula = "" if record["peak_formula_gib"] is None else f" (formula {record['peak_formula_gib']:.3f})"
    first = " ".join(f"{each:.2f}" for each in record["first_s"])
    return (
        f"{record['about']['part']:15} {record['job']:34} {record['order']:9} {record['tok_s']:9,.1f} tok/s{expected}, "
        f"bound {record['bound_tok_s']:,.0f} ({100 * record['of_bound']:.1f} %), link {record['link_gb_s']:.1f} GB/s of "
        f"{record['link_copies_gb_s']:.1f}, peak {record['peak_gib']:.3f} GiB{formula}, {record['sweeps']} sweeps, first {first} s, "
        f"then {record['seconds']:.3f}{_judged(record)}"
    )


def _judged(record: dict[str, Any]) -> str:
    gate = record["asked"]["gate"]
    if gate is None:
        return ""
    passed = record["of_bound"] >= gate if gate < 1 else record["tok_s"] >= gate
    wanted = f"{100 * gate:.0f} % of bound" if gate < 1 else f"{gate:,.0f} tok/s"
    return f", gate {wanted}: {'ok' if passed else 'MISSED'}"


def _comparisons(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How the two orders stand to each other where that is asked for, whichever process ran them."""
    whole = [record for record in records if "order" in record]
    for record in whole:
        least, ratio = record["asked"]["ahead"], _beside_zigzag(record, [other for other in whole if other["order"] == "zigzag"])
        if least is not None and ratio is not None:
            held = "ok" if ratio >= least else "MISSED"
            yield f"{record['measured']}, {record['job']}: diagonal {ratio:.3f} x zigzag, at least {least}: {held}"
    for record in records:
        if "cells" in record:
            yield ", ".join(f"{name} {value}" for name, value in record.items() if not isinstance(value, dict | str))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="repeatable (default: all parts)")
    parser.add_argument("--order", choices=("zigzag", "diagonal"), help="this order alone (default: each that is asked for)")
    parser.add_argument("--seconds", type=float, help="time limit of every part, in place of its own")
    parser.add_argument("--output", help="file to append records to")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        run_part(arguments.part, arguments.output, arguments.order)
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(arguments.output or Path(folder) / "records.jsonl")
        old = kept.stat().st_size if kept.exists() else 0
        for name in arguments.only or PARTS:
            command = [sys.executable, os.path.abspath(__file__), "--part", name, "--output", str(kept)]
            command += ["--order", arguments.order] if arguments.order else []
            begin = time.perf_counter()
            try:
                code = subprocess.run(command, timeout=arguments.seconds or PARTS[name].seconds, check=False).returncode
                print(f"{name}: {'done' if code == 0 else f'exit code {code}'} after {time.perf_counter() - begin:.0f} s", flush=True)
            except subprocess.TimeoutExpired:
                print(f"{name}: stopped at its time limit", flush=True)
        found = [json.loads(line) for line in kept.read_bytes()[old:].splitlines()] if kept.exists() else []
        cells = [record for record in found if PARTS[record["about"]["part"]].runs > 1]
        if cells and arguments.order is None:
            found.append(_worst(cells))
            with kept.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
        print(*_comparisons(found), sep="\n")


if __name__ == "__main__":
    main()
