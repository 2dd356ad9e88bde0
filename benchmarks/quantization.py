"""What quantization is held to on a GPU: opt-6.7b with dummy weights, each format beside bfloat16 in the same run.

    python benchmarks/quantization.py [--only PART] [--decode] [--launches] [--shapes] [--profile] [--output FILE]

Parts are bf16, int8, w8a8, int4-g64, fp8 (decode steps at batch 1 and 16, prefill of 16 x 1024, bytes of the weights), kv (decode
steps of a bfloat16 model at batch 48 and context 1,900, with the cache in bfloat16, fp8 and int8) and, only if asked for, hf-int8
(transformers with bitsandbytes' LLM.int8, batch 1). Each runs in a process of its own under a time limit. Ratios are printed last, and one
JSON object a measurement is appended to the file given (benchmarks/quantization_records.py makes a table of it).

--launches times single launches of few rows instead, one by one, as they may be chosen, beside the time that their bytes take at the rate
of a copy; --shapes times products of many rows. Every result is compared with float32 first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from gpu_clock import begin, milliseconds
from torch import Tensor
from torch.nn import functional

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.machine.environment import environment
from inferometer.engine.engine import Engine
from inferometer.engine.tuning import tune
from inferometer.kernels.eight_bit_matmul import blocks, eight_bit_matmul
from inferometer.kernels.quant_choice import multiplies, quant_many
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.quant_linear import quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.rounded_rows import Rounded, round_rows
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, candidates
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import rounded
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted
from inferometer.schedule.request import Request
from kernels import fill, prompts, steps, timed_ms

MODEL = "opt-6.7b"
FORMATS = {"bf16": None, "int8": "int8", "w8a8": "w8a8", "int4-g64": "int4-g64", "fp8": "fp8"}
GATES = {
    "decode 1": {"int8": 1.65, "int4-g64": 2.3, "fp8": 1.6},
    "decode 16": {"int8": 1.5, "int4-g64": 1.9, "fp8": 1.5},
    "prefill": {"w8a8": 1.2, "int4-g64": 0.9, "fp8": 1.4},
    "kv": {"fp8": 1.5},
}
"""Times as fast as bfloat16, at least."""
HF = "hf-int8"
TIMES_HF = 5.0
"""As fast as transformers with bitsandbytes int8 our int8 is, at least: a decode step at batch 1."""
BYTES = {"int8": 0.52, "int4-g64": 0.31, "fp8": 0.52}
"""Of bfloat16's bytes, at most."""
LIMIT_S = 150.0
STEPS = 40
MAPS = {"qkv": (12288, 4096), "output": (4096, 4096), "up": (16384, 4096), "down": (4096, 16384)}
CACHE_BYTES = 256 * 2**20
"""More than any L2 cache holds, by far."""


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
    """What was chosen for the maps of a layer."""
    layer = llm.model.layers[0]
    maps = {
        "qkv": layer.attention.qkv, "output": layer.attention.output, "up": layer.feed_forward.up, "down": layer.feed_forward.down,
    }  # fmt: skip
    return {name: {rows: words_for(launch) for rows, launch in linear.launches.items()} for name, linear in maps.items()}


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


def summary(records: list[dict[str, Any]]) -> bool:
    """Prints ratios beside gates. Returns whether all that were measured are kept."""
    found = {(record["measured"], record["format"]): record for record in records}
    kept = True
    ours, theirs = found.get(("decode 1", "int8")), found.get(("decode 1", HF))
    if ours is not None and theirs is not None:
        ratio = theirs["ms"] / ours["ms"]
        kept &= ratio >= TIMES_HF
        print(f"{theirs['stack_version']}: {theirs['ms']:.3f} ms, ours {ratio:.2f}x as fast{verdict(ratio, TIMES_HF, least=True)}")
    for (measured, name), record in found.items():
        base = found.get((measured, "bf16"))
        if measured == "bytes" and base is not None:
            ratio, most = record["weight_bytes"] / base["weight_bytes"], BYTES.get(name)
            kept &= most is None or ratio <= most
            print(f"weights    {name:9} {record['weight_bytes'] / 1e9:8.3f} GB  {ratio:.3f}x{verdict(ratio, most, least=False)}")
        elif "ms" in record and base is not None:
            ratio, least = base["ms"] / record["ms"], GATES[measured].get(name)
            kept &= least is None or ratio >= least
            print(f"{measured:10} {name:9} {record['ms']:8.3f} ms  {ratio:.3f}x{verdict(ratio, least, least=True)}")
        if "kernels" in record:
            print(f"{measured} {name}:")
            for kernel, (us, count) in record["kernels"].items():
                print(f"    {us:8.2f} us {count:6.1f} x {us / count:7.2f} us  {kernel}")
    return kept


def verdict(ratio: float, gate: float | None, *, least: bool) -> str:
    if gate is None:
        return ""
    return f" (gate {gate}: {'kept' if (ratio >= gate if least else ratio <= gate) else 'MISSED'})"


def gates(only: list[str], profiled: bool, decode: bool, output: str | None) -> int:
    """Every part in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(output or Path(folder) / "records.jsonl")
        first = len(path.read_text().splitlines()) if path.exists() else 0
        failed = []
        for part in only or [*FORMATS, "kv"]:
            flags = [name for name, asked in (("--profile", profiled), ("--decode", decode)) if asked]
            command = [sys.executable, __file__, "--part", part, "--output", str(path), *flags]
            started = time.monotonic()
            try:
                code = subprocess.run(command, timeout=LIMIT_S, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 124
            if code:
                failed.append(part)
            print(f"{part}: {time.monotonic() - started:.0f} s{f', FAILED with {code}' if code else ''}", flush=True)
        records = [json.loads(line) for line in path.read_text().splitlines()[first:]] if path.exists() else []
    return 0 if summary(records) and not failed else 1


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
    kind += " readied" if launch.readied else " in halves" if launch.in_halves else ""
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
                for launch in quant_candidates(rows, weights[0]):
                    try:
                        error = max(off(quant_linear_triton(x, weights[0], launch=launch), want) for _ in range(2))
                        us = milliseconds([partial(quant_linear_triton, x, weight, launch=launch) for weight in weights], 8) * 1e3
                    except Exception as problem:
                        if isinstance(problem, torch.AcceleratorError):
                            raise  # nothing runs after a fault
                        print(f"    {part} {words_for(launch)}: {type(problem).__name__}: {str(problem).splitlines()[0][:80]}")
                        continue
                    wrong += error > 1e-2
                    found.append((us, error, launch))
                for us, error, launch in sorted(found, key=lambda one: one[0]):
                    says = f"WRONG BY {error:.1e}" if error > 1e-2 else f"off {error:.1e}"
                    print(
                        f"    {part:9} {us:7.1f} us, {floor_us:5.1f} at copy rate ({floor_us / us:4.0%}), {best * 1e3 / us:.2f}x bf16, "
                        f"{says}  {words_for(launch)}",
                        flush=True,
                    )
    return 1 if wrong else 0


def many_rows(x: Tensor, weight: QuantWeight) -> Tensor:
    """What computes more rows than the launches of few."""
    return quant_many(x, weight, None) if multiplies(weight.activations, x.device) else functional.linear(x, widened(weight, x.dtype))


@dataclass
class Many:
    """Products of many rows with one map of a layer."""

    x: Tensor
    bias: Tensor
    outputs: int
    wrong: int = 0

    def told(self, label: str, run: Callable[[], Tensor], want: Tensor | None = None, most: float = 0.0) -> None:
        """Checked by the first rows, timed and printed."""
        try:
            error = 0.0 if want is None else off(run()[: len(want)], want)
            ms = milliseconds([run], 60)
        except Exception as problem:
            if isinstance(problem, torch.AcceleratorError):
                raise
            print(f"    {label:48} {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)
            return
        self.wrong += error > most
        says = "" if want is None else f"  WRONG BY {error:.1e}" if error > most else f"  off {error:.1e}"
        rate = 2 * self.x.numel() * self.outputs / ms / 1e9
        print(f"    {label:48} {ms:7.3f} ms {rate:7.0f} TFLOP/s{says}", flush=True)

    def want(self, weight: QuantWeight) -> Tensor:
        return functional.linear(self.x[:256].float(), weight.dequantised(), self.bias.float())

    def through_wide(self, weight: QuantWeight) -> Tensor:
        return functional.linear(self.x, widened(weight, torch.bfloat16), self.bias)

    def widened_formats(self) -> None:
        for part in ("int4-g64", "int8"):
            weight = quantised(part, self.outputs, self.x.shape[1])
            self.told(f"{part} widened alone", partial(widened, weight, torch.bfloat16))
            self.told(f"{part} widened, then bf16", partial(self.through_wide, weight), self.want(weight), 1e-2)

    def eight_bit_formats(self) -> None:
        for part in ("w8a8", "fp8"):
            weight = quantised(part, self.outputs, self.x.shape[1])
            if not multiplies(weight.activations, self.x.device) or weight.activations == "wide":
                continue
            want, (levels, scale) = self.want(weight), round_rows(self.x, weight.activations)
            self.told(f"{part} rows rounded alone", partial(_levels, self.x, weight.activations))
            self.told(f"{part} all", partial(quant_many, self.x, weight, self.bias), want, 6e-2)
            for chosen in blocks(self.x.device):
                label = f"{part} {chosen.rows} x {chosen.outputs} x {chosen.inputs}, {chosen.warps} warps, {chosen.stages} stages"
                self.told(label, partial(eight_bit_matmul, levels, scale, weight, torch.bfloat16, self.bias, chosen=chosen), want, 6e-2)
            if part == "w8a8":
                self.told("torch._int_mm, unscaled", partial(torch._int_mm, levels, weight.data.t()))
                continue
            for fast in (True, False):
                scaled = partial(
                    torch._scaled_mm, levels, weight.data.t(), scale[:, None], weight.scale[None, :], bias=self.bias,
                    out_dtype=torch.bfloat16, use_fast_accum=fast,
                )  # fmt: skip
                self.told(f"torch._scaled_mm, fast accumulation {fast}", scaled, want, 6e-2)


def _levels(x: Tensor, kind: Rounded) -> Tensor:
    return round_rows(x, kind)[0]


@torch.inference_mode()
def shapes(rows: int, maps: list[str]) -> int:
    begin(torch.bfloat16)
    wrong = 0
    for name in maps:
        outputs, inputs = MAPS[name]
        print(f"{name} {outputs} x {inputs}, {rows} rows")
        sizes = (rows, inputs), (outputs,), (outputs, inputs)
        x, bias, plain = (torch.randn(size, dtype=torch.bfloat16, device="cuda") for size in sizes)
        many = Many(x, bias, outputs)
        many.told("bf16", partial(functional.linear, x, plain, bias))
        many.widened_formats()
        many.eight_bit_formats()
        wrong += many.wrong
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=(*FORMATS, "kv", HF), help="this part; repeatable")
    parser.add_argument("--decode", action="store_true", help="without prefill")
    parser.add_argument("--launches", action="store_true", help="time single launches of few rows")
    parser.add_argument("--shapes", action="store_true", help="time products of many rows")
    parser.add_argument("--rows", default="1,16", help="numbers of rows of --launches, or one for --shapes (16384)")
    parser.add_argument("--maps", default=",".join(MAPS), help="which maps of a layer (%(default)s)")
    parser.add_argument("--profile", action="store_true", help="also say which kernels take the time")
    parser.add_argument("--output", help="file to append records to")
    parser.add_argument("--part", choices=(*FORMATS, "kv", HF), help=argparse.SUPPRESS)
    options = parser.parse_args()
    maps = options.maps.split(",")
    if options.launches:
        asked = [part for part in options.only or ("int8", "int4-g64", "fp8") if FORMATS.get(part)]
        return launches(asked, maps, [int(count) for count in options.rows.split(",")])
    if options.shapes:
        return shapes(int(options.rows) if options.rows.isdigit() else 16384, maps)
    if options.part is None:
        return gates(options.only or [], options.profile, options.decode, options.output)
    for record in measure(options.part, options.profile, options.decode):
        with open(options.output, "a") as file:
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
