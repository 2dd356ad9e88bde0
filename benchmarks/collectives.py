"""What a sum over GPUs takes: python benchmarks/collectives.py [--gpus N] [--only PART ...] [--output FILE].

Every part runs in processes of its own, one a GPU, under a time limit: a collective that hangs ends its part and nothing else. Times are of
CUDA graphs of many calls behind each other, the slowest rank's; every algorithm is checked against sums in float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from collective_parts import PARTS
from collective_rank import KIB, Rank, Row

from inferometer.bench.machine.environment import environment

LIMITS_S = {"ways": 50, "mailbox": 40, "rows": 40, "overlap": 40, "collective": 70, "torch": 30, "nccl": 30, "order": 30}


def run_part(name: str, gpus: int) -> list[Row]:
    """In processes of its own. What it has said when its time is over counts."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        began = time.monotonic()
        processes = []
        for rank in range(gpus):
            variables = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(gpus), "STORE": f"{folder}/store"}
            command = [sys.executable, __file__, "--part", name]
            output, errors = (files.enter_context(Path(folder, f"{rank}.{kind}").open("w+")) for kind in ("out", "err"))
            processes.append((subprocess.Popen(command, env=variables, stdout=output, stderr=errors), output, errors))
        status = "ok"
        for process, _, _ in processes:
            try:
                process.wait(max(0.1, LIMITS_S[name] + began - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = f"hung, ended after {LIMITS_S[name]} s"
        for process, _, _ in processes:
            process.kill()
            process.wait()
        rows: list[Row] = []
        for rank, (process, output, errors) in enumerate(processes):
            output.seek(0)
            errors.seek(0)
            text = errors.read()
            if process.returncode != 0:
                print(f"{name}, rank {rank}: {process.returncode}\n{text[-1500:]}", file=sys.stderr, flush=True)
                status = status if status != "ok" else "failed"
            if rank == 0:
                rows = [json.loads(line) for line in output if line.startswith("{")]
        print(f"# {name}: {status}, {time.monotonic() - began:.1f} s", flush=True)
    return [{"part": name, "gpus": gpus, **row} for row in rows]


def shown(row: Row) -> str:
    """A line."""
    return f"{row['what']:44} {row['bytes'] / KIB:10.0f} KiB {row['us']:9.2f} us"


def records(rows: list[Row], gpus: int) -> list[dict[str, Any]]:
    """As benchmarks/measurements keeps them: one a size, microseconds by what was measured."""
    device = torch.device("cuda", 0)
    about = {"device_name": torch.cuda.get_device_name(device), "environment": environment(device)}
    names = dict.fromkeys(row["what"] for row in rows)
    found = []
    for size in sorted({row["bytes"] for row in rows}):
        times = {row["what"]: row["us"] for row in rows if row["bytes"] == size}
        measured = {"measured": f"sums over {gpus} GPUs, microseconds", "bytes": size}
        found.append(measured | {name: times.get(name) for name in names} | about)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", help="a file for the rows, JSON lines")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        rank = Rank()
        for row in PARTS[arguments.part](rank):
            if rank.rank == 0:
                print(json.dumps(row), flush=True)
        return 0
    if torch.cuda.device_count() < arguments.gpus:
        print(f"needs {arguments.gpus} GPUs, here are {torch.cuda.device_count()}", file=sys.stderr)
        return 2
    rows = [row for name in arguments.only for row in run_part(name, arguments.gpus)]
    for row in rows:
        print(shown(row))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records(rows, arguments.gpus))
    return 0


if __name__ == "__main__":
    sys.exit(main())
