"""Decoding on the CPU beside transformers: the embedded model, all contestants in one process, in turns of a few steps each.

Other work on the machine slows both alike from turn to turn, so what counts are the ratios: the median over turns of (theirs / ours), and
the ratio of the best steps. The bound of a step is its bytes over the rate at which the threads read a buffer as large, in the same turns.

    python benchmarks/cpu.py [--only FORMAT] [--turns N] [--steps N] [--context N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.backend import Backend
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.prompts import text_prompts
from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.environment import environment
from inferometer.bench.measurement.check import check
from inferometer.engine.device import resolve_dtype
from inferometer.estimate.bound import bound
from inferometer.estimate.limits import limits
from inferometer.hardware.catalogue import find_device
from inferometer.model.description import describe, with_weights
from inferometer.model.families import family
from inferometer.model.formats import Formats, weight_format
from inferometer.model.step import decode
from inferometer.model.work import work
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted
from inferometer.text.load import load_tokenizer

DEVICE = torch.device("cpu")
OURS: dict[str, tuple[str, str | None]] = {
    "float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("bfloat16", "int8"), "int4-g64": ("bfloat16", "int4-g64"),
}  # fmt: skip
"""Type of activations, and format of weights where it is another."""
# rows, ours, their dtype, and the speed-up that is asked for, if any.
CASES: tuple[tuple[int, str, str, float | None], ...] = (
    (1, "float32", "float32", 1.5),
    (1, "bfloat16", "bfloat16", 1.5),
    (4, "float32", "float32", None),
    (8, "float32", "float32", None),
    (8, "bfloat16", "float32", 3.0),
    (16, "bfloat16", "float32", None),
    (1, "int8", "float32", 2.0),
    (1, "int4-g64", "float32", 3.0),
)
WARM_UP = 3
BUFFER_BYTES = 540_000_000


def transformers_backend(dtype: str) -> HFBackend:
    """The embedded model in transformers."""
    described = with_weights(describe(None))
    with closing(open_source(described)) as source:
        spec = fitted(described.spec, source, family(described.spec.family))
        return HFBackend(described.config, spec, source, DEVICE, resolve_dtype(dtype, DEVICE, None))


def turn(backend: Backend, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
    """Milliseconds of each of some decode steps behind the prompts."""
    params = SamplingParams(max_new_tokens=WARM_UP + steps + 1, ignore_eos=True)
    backend.prepare(len(prompts), len(prompts[0]) + params.max_new_tokens)
    backend.prefill(prompts, params)
    times = []
    for _ in range(WARM_UP + steps):
        begin = time.perf_counter()
        backend.decode()
        times.append((time.perf_counter() - begin) * 1000)
    backend.finish()
    return times[WARM_UP:]


class Reading:
    """The rate at which the threads read: a matrix times a vector, as a decode step does, or its sum, whichever is faster here."""

    def __init__(self) -> None:
        self.matrix = torch.ones(BUFFER_BYTES // 4 // 4096, 4096)
        self.vector = torch.ones(4096)
        self.rates: list[float] = []

    def measure(self) -> None:
        """Each twice, the best kept."""
        seconds = []
        for read in 2 * (partial(torch.mv, self.matrix, self.vector), partial(torch.sum, self.matrix)):
            begin = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - begin)
        self.rates.append(self.matrix.nbytes / min(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--context", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--only", action="append", choices=OURS, help="cases of this format; repeatable")
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.only or case[1] in arguments.only]
    measured = calibrate("cpu", budget_s=4)
    device = find_device(measured.slug or "cpu")
    assert device is not None
    ceilings = limits(device, measured)
    about = {
        "device_name": measured.device_name,
        "copy_bytes_s": measured.copy_bandwidth_bytes_s,
        "bf16_flop_s": measured.matmul_flop_s.get("bfloat16"),
        "environment": environment(DEVICE),
    }
    tokenizer = load_tokenizer(describe(None).path)
    with ExitStack() as stack:
        ours, theirs = {}, {}
        for dtype in {other for _, _, other, _ in cases}:
            theirs[dtype] = stack.enter_context(closing(transformers_backend(dtype)))
        for name in {mine for _, mine, _, _ in cases}:
            dtype, quantize = OURS[name]
            ours[name] = stack.enter_context(closing(NativeBackend(LLM(dtype=dtype, device="cpu", quantize=quantize))))
        spec = next(iter(ours.values()))._llm.spec
        prompts = text_prompts(tokenizer, max(rows for rows, *_ in cases), arguments.context, spec.vocabulary)
        errors: dict[str, float] = {}
        for dtype in theirs.keys() & ours.keys():  # what is rounded is held to its quality (benchmarks/quality.py)
            backend = ours[dtype]
            found = check(backend, theirs[dtype], prompts[:4], dtype=backend._llm.dtype, steps=8, loss=False, together=8)
            assert found.passed, f"{dtype}: {found}"
            assert found.max_error is not None
            errors[dtype] = found.max_error
            print(f"{dtype}: {found.method}: error {found.max_error:.2g}")
        reading = Reading()
        for rows, mine, other, gate in cases:
            first = len(reading.rates)
            we: list[list[float]] = []
            they: list[list[float]] = []
            for _ in range(arguments.turns):
                we.append(turn(ours[mine], prompts[:rows], arguments.steps))
                they.append(turn(theirs[other], prompts[:rows], arguments.steps))
                reading.measure()
            ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(we, they, strict=True)]
            best, median = min(map(min, we)), statistics.median([ms for times in we for ms in times])
            rate = max(reading.rates[first:])
            contexts = [arguments.context + WARM_UP + arguments.steps // 2 + 2] * rows
            dtype, quantize = OURS[mine]
            formats = Formats(dtype=dtype, weights=None if quantize is None else weight_format(quantize, dtype))
            least = bound(work(spec, decode(contexts), formats), replace(ceilings, memory_bytes_s=rate)).ms
            record: dict[str, Any] = {
                "measured": "cpu decode", "model": spec.name, "batch_size": rows, "context": contexts[0], "dtype": mine, "hf_dtype": other,
                "step_ms": median, "best_step_ms": best, "hf_step_ms": statistics.median([ms for times in they for ms in times]),
                "hf_best_step_ms": min(map(min, they)), "speedup": statistics.median(ratios),
                "speedup_of_best": min(map(min, they)) / best, "speedup_low": min(ratios), "speedup_high": max(ratios), "gate": gate,
                "tok_s": rows * 1000 / median, "read_bytes_s": rate, "bound_ms": least, "of_bound": least / median,
                "of_bound_best": least / best, "max_error": errors.get(mine),
            }  # fmt: skip
            for key, value in record.items():
                print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
            print(flush=True)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps({**record, **about}) + "\n")


if __name__ == "__main__":
    main()
