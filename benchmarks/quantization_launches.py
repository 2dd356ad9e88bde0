"""Single launches of few rows and a weight in few bits, as they may be chosen, beside the time that their bytes take at the rate of a copy.

    python benchmarks/quantization_launches.py [--only FORMAT] [--rows 1,16] [--maps qkv,output,up,down,head]

opt-6.7b's maps; every result is compared with float32 first. Exits with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context

import torch
from gpu_clock import CACHE_BYTES, begin, milliseconds
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.quant_choice import multiplies, quant_many
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.quant_linear import FEWEST_ROUNDED, quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, candidates
from inferometer.model.formats import weight_format
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import rounded

FORMATS = {"bf16": None, "int8": "int8", "w8a8": "w8a8", "int4-g64": "int4-g64", "fp8": "fp8"}
MAPS = {"qkv": (12288, 4096), "output": (4096, 4096), "up": (16384, 4096), "down": (4096, 16384), "head": (50272, 4096)}


def quantised(part: str, outputs: int, inputs: int) -> QuantWeight:
    layout = QuantLayout.of(weight_format(FORMATS[part], "bfloat16"), torch.device("cuda", 0))
    return rounded(torch.randn(outputs, inputs, device="cuda") * inputs**-0.5, layout)


def weights_for(part: str, outputs: int, inputs: int) -> list[QuantWeight]:
    """As many as it takes that none is in the cache when its turn comes again."""
    first = quantised(part, outputs, inputs)
    return [first, *(quantised(part, outputs, inputs) for _ in range(max(3, CACHE_BYTES // first.nbytes)))]


def words_for(launch: Tiling | None) -> str:
    if launch is None:
        return "many"
    kind = "whole" if launch.whole else "bytes" if launch.in_bytes else "few"
    kind += " readied" if launch.readied else ""
    return f"{kind} {launch.outputs} x {launch.block}, {launch.warps} warps, {launch.stages} stages, {launch.programs} programs"


def compile_ahead(jobs: list[tuple[str, int, int, int, int]]) -> None:
    """In a process of its own: what is compiled lies in Triton's cache on disk then. A failure is told when the launch is timed."""
    for part, outputs, inputs, rows, number in jobs:
        with suppress(Exception):
            weight = quantised(part, outputs, inputs)
            x = torch.zeros(rows, inputs, dtype=torch.bfloat16, device="cuda")
            quant_linear_triton(x, weight, launch=quant_candidates(rows, weight)[number])


def compile_all(parts: list[str], maps: list[str], rows_asked: list[int]) -> None:
    """Every launch that may be chosen, on all cores."""
    jobs = [
        (part, *MAPS[name], rows, number)
        for part in parts for name in maps for rows in rows_asked
        for number in range(len(quant_candidates(rows, quantised(part, *MAPS[name]))))
    ]  # fmt: skip
    started, workers = time.monotonic(), min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_ahead, [jobs[first::workers] for first in range(workers)]))
    print(f"{len(jobs)} launches compiled after {time.monotonic() - started:.0f} s", flush=True)


def off(got: Tensor, want: Tensor) -> float:
    """Relative error over all outputs; anything that is no number counts as infinite."""
    error = float((got.float() - want).norm() / want.norm())
    return error if error == error else float("inf")


@torch.inference_mode()
def launches(parts: list[str], maps: list[str], rows_asked: list[int]) -> int:
    copy = begin(torch.bfloat16).copy_gb_s
    compile_all(parts, maps, rows_asked)
    wrong = 0
    for name in maps:
        outputs, inputs = MAPS[name]
        count = max(3, CACHE_BYTES // (2 * outputs * inputs))
        plain = [torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
        for rows in rows_asked:
            x = torch.randn(rows, inputs, dtype=torch.bfloat16, device="cuda")
            best = milliseconds([partial(functional.linear, x, weight) for weight in plain], 8)
            for launch in candidates(rows, inputs)[:3] if rows <= MOST_ROWS else ():
                best = min(best, milliseconds([partial(skinny_triton, x, weight, launch=launch) for weight in plain], 8))
            at_copy = 2 * outputs * inputs / 1e3 / copy
            print(f"{name} {outputs} x {inputs}, {rows} rows: bf16 {best * 1e3:.1f} us, {at_copy:.1f} at copy rate")
            for part in parts:
                weights = weights_for(part, outputs, inputs)
                floor_us = weights[0].nbytes / 1e3 / copy
                want = functional.linear(x.float(), weights[0].dequantised())
                many = milliseconds([partial(many_rows, x, weight) for weight in weights[:4]], 8) * 1e3
                print(f"    {part:9} {many:7.1f} us as many rows")
                found = []
                # Where activations are rounded by the format, so are those of five rows and more.
                most = 6e-2 if rows > FEWEST_ROUNDED and weights[0].activations != "wide" else 1e-2
                for launch in quant_candidates(rows, weights[0]):
                    try:
                        error = max(off(quant_linear_triton(x, weights[0], launch=launch), want) for _ in range(2))
                        us = milliseconds([partial(quant_linear_triton, x, weight, launch=launch) for weight in weights], 8) * 1e3
                    except Exception as problem:
                        if isinstance(problem, torch.AcceleratorError):
                            raise  # nothing runs after a fault
                        print(f"    {part} {words_for(launch)}: {type(problem).__name__}: {str(problem).splitlines()[0][:80]}")
                        continue
                    wrong += error > most
                    found.append((us, error, launch))
                for us, error, launch in sorted(found, key=lambda one: one[0]):
                    says = f"WRONG BY {error:.1e}" if error > most else f"off {error:.1e}"
                    print(
                        f"    {part:9} {us:7.1f} us, {floor_us:5.1f} at copy rate ({floor_us / us:4.0%}), {best * 1e3 / us:.2f}x bf16, "
                        f"{says}  {words_for(launch)}",
                        flush=True,
                    )
    return 1 if wrong else 0


def many_rows(x: Tensor, weight: QuantWeight) -> Tensor:
    """What computes more rows than the launches of few."""
    return quant_many(x, weight, None) if multiplies(weight.activations, x.device) else functional.linear(x, widened(weight, x.dtype))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[name for name, form in FORMATS.items() if form], help="this format; repeatable")
    parser.add_argument("--rows", default="1,16", help="numbers of rows (%(default)s)")
    parser.add_argument("--maps", default="qkv,output,up,down", help="which maps (%(default)s)")
    options = parser.parse_args()
    asked = options.only or ["int8", "int4-g64", "fp8"]
    return launches(asked, options.maps.split(","), [int(count) for count in options.rows.split(",")])


if __name__ == "__main__":
    sys.exit(main())
