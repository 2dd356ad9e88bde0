"""What offloaded generation is held to on a GPU: full runs with dummy weights in bfloat16, each beside its estimate and the least that
the link, the matrix units and the memory leave, all measured in the same call. Prints a table; appends one JSON object a run to --output.

    python benchmarks/offload.py [--only PART ...] [--order ORDER] [--seconds S] [--output FILE]

Every part is a process of its own with a time limit, so that one that hangs or runs out of memory costs nobody else. What compiles and
records does so in runs before the timed ones: whole ones of jobs that are short, else of the same prompts with three new tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from host_link import GIB, grow_host_memory, measure_link
from offload_jobs import PARTS
from offload_run import run_job


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
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    llm = LLM(
        part.model, weights="dummy", dtype="bfloat16", device="cuda", offload=part.offload, host_memory=part.host_memory,
        gpu_memory=min((job.gpu_memory for job in part.jobs if job.gpu_memory is not None), default=None),
    )  # fmt: skip
    loaded = {"loaded_s": time.perf_counter() - begin, "loading_gib": torch.cuda.max_memory_allocated() / GIB}
    machine = {
        "device_name": calibration.device_name,
        "copy_bytes_s": calibration.copy_bandwidth_bytes_s,
        "bf16_flop_s": dict(calibration.matmul_flop_s).get("bfloat16"),
        "about": {"part": name, **loaded, **asdict(link)},
        "environment": environment(torch.device("cuda", 0)),
    }
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        if output:
            with open(output, "a") as file:
                file.write(json.dumps(record) + "\n")

    for job in part.jobs:
        for each in job.gates if order is None else (order,):
            record = {"measured": part.measured(job), **run_job(llm, part, job, each, link, calibration), **machine}
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


def _line(record: dict[str, Any]) -> str:
    expected = "" if record["expected_tok_s"] is None else f", expected {record['expected_tok_s']:,.0f}"
    formula = "" if record["peak_formula_gib"] is None else f" (formula {record['peak_formula_gib']:.3f})"
    first = " ".join(f"{each:.2f}" for each in record["first_s"])
    return (
        f"{record['about']['part']:15} {record['job']:34} {record['order']:9} {record['tok_s']:9,.1f} tok/s{expected}, "
        f"bound {record['bound_tok_s']:,.0f} ({100 * record['of_bound']:.1f} %), link {record['link_gb_s']:.1f} GB/s of "
        f"{record['link_copies_gb_s']:.1f}, peak {record['peak_gib']:.3f} GiB{formula}{_limited(record)}, {record['sweeps']} sweeps, "
        f"first {first} s, then {record['seconds']:.3f}{_judged(record)}"
    )


def _limited(record: dict[str, Any]) -> str:
    limit, allocated = record["limit_gib"], record["allocated_gib"]
    return "" if limit is None else f", allocated {allocated:.3f} of {limit:g}: {'ok' if allocated <= limit else 'OVER'}"


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
