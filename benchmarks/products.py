"""How long the library's products of many rows take beside what the estimator expects: python benchmarks/products.py FILE [--rows 64,512].

Linear maps with bias in bfloat16 (functional.linear), of the shapes of models of 1.3, 7 and 13e9 weights and of their shares on two GPUs,
over the rows of prompts. Times are of CUDA graphs in which as many weights follow each other as it takes that none is in the L2 cache from
the time before, in short bursts: of long prompts the clock falls. Appends a JSON line a product to FILE; prints them in a table, and the
mean error of what was expected for each number of rows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import torch
from gpu_clock import CACHE_BYTES, milliseconds
from torch.nn import functional

from inferometer.bench.machine.calibrate import calibrate
from inferometer.estimate.gemm import overlapped
from inferometer.estimate.limits import limits
from inferometer.estimate.machine import machine
from inferometer.estimate.products import Products
from inferometer.estimate.stack import find_stack
from inferometer.hardware.catalogue import find_device, match_driver_name
from inferometer.model.formats import Formats
from inferometer.model.ops import Op

DTYPE = torch.bfloat16
ROWS = (16, 32, 64, 100, 128, 200, 256, 400, 512, 640, 800, 1024, 1536, 2048, 2560, 4096, 8192)
SHAPES = (
    (2048, 2048), (6144, 2048), (8192, 2048), (2048, 8192),
    (4096, 4096), (12288, 4096), (16384, 4096), (4096, 16384),
    (4096, 2048), (6144, 4096), (8192, 4096), (4096, 8192),
    (5120, 5120), (15360, 5120), (20480, 5120), (5120, 20480),
)  # fmt: skip
BURST_MS = 12


def microseconds(rows: int, outputs: int, inputs: int) -> float:
    """Of one product, the median of replays."""
    count = max(2, math.ceil(CACHE_BYTES / (DTYPE.itemsize * outputs * inputs)))
    x = torch.randn(rows, inputs, dtype=DTYPE, device="cuda")
    bias = torch.randn(outputs, dtype=DTYPE, device="cuda")
    weights = [torch.randn(outputs, inputs, dtype=DTYPE, device="cuda") for _ in range(count)]
    return 1e3 * milliseconds([partial(functional.linear, x, weight, bias) for weight in weights], BURST_MS)


def expected_us(products: Products, rows: int, outputs: int, inputs: int) -> float:
    """What the estimator says of it."""
    weight = DTYPE.itemsize * outputs * inputs
    op = Op(
        kind="gemm",
        name="product",
        shape=(rows, outputs, inputs),
        unit="tensor",
        dtype="bfloat16",
        flops=2 * rows * outputs * inputs,
        bytes_read=weight,
        weight_bytes=weight,
        activation_bytes=DTYPE.itemsize * rows * (outputs + inputs),
    )
    tensor, memory, extra = products.op(op)
    return 1e6 * (overlapped(tensor, memory) + extra + products.stack.kernel_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "products.py: error: needs a CUDA device\n")
    torch.manual_seed(0)
    name, now = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    slug = match_driver_name(name)
    if slug is None:
        parser.exit(2, f"products.py: error: the catalogue has no {name}\n")
    found = calibrate(f"cuda:{torch.cuda.current_device()}", budget_s=4)
    device = find_device(slug)
    here = machine(device, limits(device, found))
    products = Products(stack=find_stack("native"), machine=here, formats=Formats(dtype="bfloat16"))
    print(f"{name}, torch {torch.__version__}: {found.matmul_flop_s['bfloat16'] / 1e12:.0f} TFLOP/s, {now}")
    print("| rows | outputs | inputs | us | TFLOP/s | expected | off |\n|---|---|---|---|---|---|---|")
    off: dict[int, list[float]] = defaultdict(list)
    with arguments.file.open("a", encoding="utf-8") as out:
        for (outputs, inputs), rows in product(SHAPES, arguments.rows):
            us, expected = microseconds(rows, outputs, inputs), expected_us(products, rows, outputs, inputs)
            off[rows].append(expected / us - 1)
            line = {"device_name": name, "measured_at": now, "dtype": "bfloat16", "m": rows, "n": outputs, "k": inputs}
            out.write(json.dumps(line | {"us": round(us, 2), "expected_us": round(expected, 2)}) + "\n")
            out.flush()
            rate = 2e-6 * rows * outputs * inputs / us
            print(f"| {rows} | {outputs} | {inputs} | {us:.1f} | {rate:.0f} | {expected:.1f} | {expected / us - 1:+.0%} |", flush=True)
    for rows, errors in off.items():
        print(f"{rows} rows: {statistics.mean(errors):+.1%} on average, {statistics.mean(map(abs, errors)):.1%} either way")


if __name__ == "__main__":
    main()
