"""What the small kernels of a layer take, beside torch's operations one after another: python benchmarks/layer_kernels.py [--only TEXT].

All of them move memory and compute next to nothing: their rate stands beside that of a copy, measured here; with few tokens it is the
launch that takes the time. Every case is checked against the reference before it is timed. Times are of CUDA graphs in which as many
launches on memory of their own follow each other as it takes that none finds its input in the L2 cache, 64 at most.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from gpu_clock import CACHE_BYTES, begin, milliseconds
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.gate import gate, gate_torch
from inferometer.kernels.kv_write import kv_write
from inferometer.kernels.norm import norm, norm_torch
from inferometer.kernels.rotary_write import rotary_write, rotary_write_torch, rotate
from inferometer.model.spec import NormKind, Rotary
from inferometer.nn.rotary import RotaryEmbedding

DTYPE = torch.bfloat16
TOKENS = (1, 16, 256, 4096)
HIDDEN = (2048, 4096)
HEAD_SIZE = 128

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """make: launches on new memory: the kernel, torch's operations, and a check of the kernel against its reference."""

    name: str
    elements: int
    make: Callable[[], tuple[Run, Run, Run]]

    @property
    def bytes(self) -> int:
        return DTYPE.itemsize * self.elements


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DTYPE, device="cuda")


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)


def norm_case(tokens: int, hidden: int, kind: NormKind, *, added: bool) -> Case:
    weight, bias = random(hidden), random(hidden) if kind == "layer" else None
    named = {"kind": kind, "epsilon": 1e-5, "weight": weight, "bias": bias}

    def make() -> tuple[Run, Run, Run]:
        x, delta = random(tokens, hidden), random(tokens, hidden) if added else None

        def unfused() -> Tensor:
            total = x if delta is None else x + delta
            if kind == "rms":
                return functional.rms_norm(total, (hidden,), weight, 1e-5)
            return functional.layer_norm(total, (hidden,), weight, bias, 1e-5)

        def check() -> None:
            ours, theirs = x.clone(), x.clone()
            want = norm_torch(theirs, delta, **named)
            same(norm(ours, None if delta is None else delta.clone(), **named), want)
            assert torch.equal(ours, theirs)

        return lambda: norm(x, delta, **named), unfused, check

    name = "LayerNorm" if kind == "layer" else "RMSNorm"
    return Case(f"add, {name}" if added else name, tokens * hidden * (4 if added else 2), make)


def gate_case(tokens: int, hidden: int) -> Case:
    width = hidden * 43 // 16  # llama's

    def make() -> tuple[Run, Run, Run]:
        inner = random(tokens, 2 * width)
        return lambda: gate(inner, "silu"), lambda: gate_torch(inner, "silu"), lambda: same(gate(inner, "silu"), gate_torch(inner, "silu"))

    return Case("silu gate", 3 * tokens * width, make)


def rotary_case(tokens: int, hidden: int) -> Case:
    queries = hidden // HEAD_SIZE
    kv_heads = queries // 4
    rotated = queries + kv_heads
    positions = torch.arange(tokens, device="cuda")
    tables = RotaryEmbedding(Rotary(10_000.0), HEAD_SIZE, positions.device).tables(positions, positions + 1, DTYPE)
    places = torch.randperm(tokens, device="cuda")

    def make() -> tuple[Run, Run, Run]:
        heads, keys, values = random(tokens, queries + 2 * kv_heads, HEAD_SIZE), *random(2, tokens, kv_heads, HEAD_SIZE).unbind()

        def unfused() -> Tensor:
            turned = rotate(heads[:, :rotated], *tables)
            kv_write(turned[:, queries:], heads[:, rotated:], keys, values, places)
            return turned[:, :queries]

        def check() -> None:
            query, written = rotary_write(heads, *tables, keys, values, places), (keys.clone(), values.clone())
            same(query, rotary_write_torch(heads, *tables, keys, values, places))
            same(written[0], keys)
            assert torch.equal(written[1], values)

        return lambda: rotary_write(heads, *tables, keys, values, places), unfused, check

    return Case("rotary, KV write", 2 * tokens * (queries + 2 * kv_heads + 1) * HEAD_SIZE, make)


def cases(tokens: int, hidden: int) -> Iterator[Case]:
    yield norm_case(tokens, hidden, "layer", added=True)
    yield norm_case(tokens, hidden, "rms", added=True)
    yield norm_case(tokens, hidden, "layer", added=False)
    yield gate_case(tokens, hidden)
    yield rotary_case(tokens, hidden)


def report(case: Case, tokens: int, hidden: int, copy: float) -> None:
    made = [case.make() for _ in range(min(64, 1 + CACHE_BYTES // case.bytes))]
    made[0][2]()
    ours, theirs = (1000 * milliseconds([made_by[i] for made_by in made], 20) for i in range(2))
    rate = case.bytes / ours / 1e3
    print(
        f"{case.name:16} {tokens:6} x {hidden:4} {ours:8.2f} us {rate:6.0f} GB/s {rate / copy:5.0%} of copy"
        f"   torch {theirs:8.2f} us, {theirs / ours:4.1f} times as long",
        flush=True,
    )


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    options = parser.parse_args()
    copy = begin(DTYPE).copy_gb_s
    for hidden in HIDDEN:
        for tokens in TOKENS:
            for case in cases(tokens, hidden):
                if options.only in case.name:
                    report(case, tokens, hidden, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
