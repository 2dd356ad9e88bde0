"""What more GPUs gain: python benchmarks/tensor_parallel.py [--gpus N] [--only PART ...] [--output FILE] [--sums FILE].

Every row is measured on one GPU and on N, in the same call, with random weights: `inferometer bench`, a process a row, under a time limit.
Beside the times stand what the estimator predicts for them and the least that the hardware could take. What a sum over the GPUs takes
comes first (collectives.py). Rows of one GPU run at the same time, each on a GPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import collectives
import torch

from inferometer.bench.records.journal import Journal, read_records
from inferometer.bench.records.record import Record

CONTEXT = 1024


@dataclass(frozen=True)
class Work:
    """A row, or several of one process. gates: by GPUs, the least gain and the one hoped for; of each batch size."""

    name: str
    model: str
    batch_sizes: tuple[int, ...]
    prefills: bool
    gates: tuple[dict[int, tuple[float, float | None]], ...]
    limit_s: int
    dtype: str = "bfloat16"
    least: int = 1
    """GPUs that hold it."""

    def command(self, gpus: int, output: Path) -> list[str]:
        """What measures it."""
        phase = ["--sequence-length", str(CONTEXT), "--decode-length", "2", "--runs", "5"]
        if not self.prefills:
            phase = ["--decode-at", str(CONTEXT), "--decode-length", "64", "--runs", "5"]
        batches = [argument for size in self.batch_sizes for argument in ("--batch-size", str(size))]
        return [
            *(sys.executable, "-m", "inferometer", "bench", self.model, "--weights", "dummy", "--dtype", self.dtype),
            *(
                "--device",
                "cuda",
                "--tensor-parallel",
                str(gpus),
                *batches,
                *phase,
                "--warmups",
                "1",
                "--no-energy",
                "--output",
                str(output),
            ),
        ]


WORKS = (
    Work(
        "decode",
        "bloomz-7b1",
        (1, 32),
        False,
        ({2: (1.55, 1.7), 4: (2.3, None)}, {2: (1.7, 1.85), 4: (2.75, None)}),
        90,
    ),
    Work("prefill", "bloomz-7b1", (8,), True, ({2: (1.7, 1.85), 4: (2.7, None)},), 75),
    Work("large", "opt-30b", (1,), False, ({2: (1.7, 1.85), 4: (3.0, None)},), 100),
    Work("largest", "llama-2-70b", (1, 32), False, ({}, {}), 120, "float16", 2),
    Work("largest-prefill", "llama-2-70b", (8,), True, ({},), 110, "float16", 2),
)
SUM_GATE_US = {2: 9.0, 4: 10.5}
SUM = "ours: sum, residual, norm"


class Run:
    """A process that measures a row, and whatever it started."""

    def __init__(self, work: Work, gpus: int, first: int, folder: Path) -> None:
        self.work, self.gpus = work, gpus
        self._file = folder / f"{work.name}-{gpus}.jsonl"
        self._errors = folder / f"{work.name}-{gpus}.err"
        visible = ",".join(seen()[first : first + gpus])
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                work.command(gpus, self._file),
                env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self._began = time.monotonic()

    def records(self) -> list[Record]:
        """Once it has ended, or its time is over: what it has measured by then."""
        code: int | None = None
        try:
            code = self._process.wait(max(0.1, self._began + self.work.limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        took = time.monotonic() - self._began
        print(f"# {self.work.name} on {self.gpus}: {'out of time' if code is None else f'exit code {code}'}, {took:.1f} s", flush=True)
        if code != 0:
            print(self._errors.read_text()[-2000:], file=sys.stderr, flush=True)
        return read_records(self._file) if self._file.exists() else []


def seen() -> list[str]:
    """The GPUs that this process may use, as its environment names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]


def measure(works: Sequence[Work], gpus: int, folder: Path) -> Iterator[Record]:
    """Each work on one GPU, as many at once as there are, then on all; as they end."""
    waiting = [work for work in works if work.least == 1]
    while waiting:
        # Two works of the same model would choose its launches at the same time.
        batch = {work.model: work for work in reversed(waiting)}
        some = [work for work in waiting if work in batch.values()][:gpus]
        running = [Run(work, 1, first, folder) for first, work in enumerate(some)]
        for run in running:
            yield from run.records()
        waiting = [work for work in waiting if work not in some]
    for work in works:
        yield from Run(work, gpus, 0, folder).records()


def milliseconds(record: Record, prefills: bool) -> tuple[float, float | None, float | None] | None:
    """Measured, predicted and least; None where it was not measured."""
    name = "prefill_ms" if prefills else "decode_token_ms"
    summary = getattr(record, name)
    if summary is None:
        return None
    return summary.p50, *(None if side is None else getattr(side, name) for side in (record.predicted, record.bound))


def rows(works: Sequence[Work], gpus: int, records: Sequence[Record]) -> list[dict[str, object]]:
    """As benchmarks/measurements keeps them: one a row of the table, of those that were measured on all GPUs."""
    found: list[dict[str, object]] = []
    for work in works:
        for batch in work.batch_sizes:
            of = records_of(work, batch, records)
            times = [milliseconds(of[count], work.prefills) if count in of else None for count in (1, gpus)]
            if times[1] is None:
                continue
            (one, expected_one, least_one), (many, expected, least) = times[0] or (None, None, None), times[1]
            about = {"device_name": of[gpus].device_name, "environment": of[gpus].environment}
            what = {"measured": f"one GPU and {gpus}, milliseconds", "model": work.model, "phase": "prefill" if work.prefills else "decode"}
            sizes = {"batch_size": batch, "context": CONTEXT}
            figures = {"one": one, "all": many, "gain": one and one / many, "predicted_one": expected_one, "predicted_all": expected}
            found.append(what | sizes | figures | {"least_one": least_one, "least_all": least} | about)
    return found


def records_of(work: Work, batch: int, records: Sequence[Record]) -> dict[int, Record]:
    """By number of GPUs."""
    wanted = (work.model, batch, not work.prefills)
    return {record.tensor_parallel: record for record in records if (record.model, record.batch_size, record.decode_only) == wanted}


def table(works: Sequence[Work], gpus: int, records: Sequence[Record]) -> list[str]:
    """A line a row."""
    lines = [
        f"| work | 1 GPU, ms | {gpus} GPUs, ms | gain | gate / hoped for | predicted, ms | predicted gain | least, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for work in works:
        for batch, gates in zip(work.batch_sizes, work.gates, strict=True):
            of = records_of(work, batch, records)
            found = [milliseconds(of[count], work.prefills) if count in of else None for count in (1, gpus)]
            what = f"{work.model}, {'prefill' if work.prefills else 'decode'}, {batch} x {CONTEXT}"
            if found[0] is None and work.least > 1 and found[1] is not None:
                many, expected, least = found[1]
                lines.append(f"| {what} | more than one holds | {many:.3f} | | | {beside(expected, many)} | | {share(least, many)} |")
                continue
            if found[0] is None or found[1] is None:
                told = next((record.evidence for record in of.values() if record.evidence), "not measured")
                lines.append(f"| {what} | {told} | | | | | | |")
                continue
            (one, expected_one, least_one), (many, expected, least) = found
            gate, hoped = gates.get(gpus, (None, None))
            lines.append(
                f"| {what} | {one:.3f} | {many:.3f} | {one / many:.2f}x | {shown(gate)} / {shown(hoped)} | "
                f"{beside(expected_one, one)} -> {beside(expected, many)} | "
                f"{'-' if not expected or not expected_one else f'{expected_one / expected:.2f}x'} | "
                f"{share(least_one, one)} -> {share(least, many)} |"
            )
    return lines


def shown(gain: float | None) -> str:
    return "-" if gain is None else f"{gain:.2f}x"


def beside(expected: float | None, measured: float) -> str:
    return "-" if expected is None else f"{expected:.3f} ({100 * (expected / measured - 1):+.1f} %)"


def share(least: float | None, measured: float) -> str:
    return "-" if least is None else f"{least:.3f} ({100 * least / measured:.0f} %)"


def main() -> int:
    names = [work.name for work in WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=("sums", *names), default=("sums", *names))
    parser.add_argument("--output", type=Path, help="a file for the records, JSON lines")
    parser.add_argument("--rows", type=Path, help="a file for the table's rows, JSON lines")
    parser.add_argument("--sums", type=Path, help="a file for what sums take, JSON lines")
    arguments = parser.parse_args()
    if torch.cuda.device_count() < arguments.gpus:
        print(f"needs {arguments.gpus} GPUs, here are {torch.cuda.device_count()}", file=sys.stderr)
        return 2
    if "sums" in arguments.only:
        sums = [row for part in ("mailbox", "collective", "nccl") for row in collectives.run_part(part, arguments.gpus)]
        print("\n".join(collectives.shown(row) for row in sums), flush=True)
        if arguments.sums:
            arguments.sums.write_text("".join(json.dumps(record) + "\n" for record in collectives.records(sums, arguments.gpus)))
        gate = SUM_GATE_US.get(arguments.gpus)
        for row in sums:
            if row["what"] == SUM and row["bytes"] == 8192 and gate is not None:
                print(f"\none token's sum, residual and norm: {row['us']:.2f} us, at most {gate} us", flush=True)
    works = [work for work in WORKS if work.name in arguments.only]
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder, Journal(arguments.output or Path(os.devnull)) as journal:
        for record in measure(works, arguments.gpus, Path(folder)):
            # Each at once: what a time limit or a signal leaves undone takes nothing with it.
            records.append(record)
            journal.append(record)
            if arguments.rows:
                arguments.rows.write_text("".join(json.dumps(row) + "\n" for row in rows(works, arguments.gpus, records)))
    print("\n".join(["", *table(works, arguments.gpus, records)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
