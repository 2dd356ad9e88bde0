"""Every kernel compiles for the GPUs that the engine runs on, and its shared memory fits there. No GPU is needed for that."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from inferometer.kernels import kv_write, paged_decode, ragged_prefill
from inferometer.kernels.support import Kernel

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")

KIB = 1024
# Most shared memory of a block (CUDA C++ programming guide, technical specifications by compute capability).
SHARED = {75: 64 * KIB, 80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


@dataclass
class Card:
    """Stands in for a GPU: compiles what would be launched on it, with what the launch would tell the compiler."""

    capability: int
    built: list[Any] = field(default_factory=list)

    def launch(self, kernel: Kernel, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        assert all(0 < size < 65536 for size in grid[1:])
        launch = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
        parameters = inspect.signature(kernel.function).parameters
        bound = inspect.signature(kernel.function).bind(*arguments, **options).arguments
        signature, constants, known = {}, {}, {}
        for i, (name, parameter) in enumerate(parameters.items()):
            value = bound[name]
            if parameter.annotation == "constexpr":
                signature[name], constants[(i,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = TYPES[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
            aligned = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
            if signature[name] != "constexpr" and aligned and name not in kernel.plain:
                known[(i,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(kernel.compiled, signature, constants, known)
        target = triton.backends.compiler.GPUTarget("cuda", self.capability, 32)
        self.built.append(triton.compile(source, target=target, options=launch))

    def check(self, kernels: int) -> None:
        assert len(self.built) == kernels
        for built in self.built:
            assert built.asm["cubin"]
            assert built.metadata.shared <= SHARED[self.capability]


@pytest.fixture
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card(request.param)
    monkeypatch.setattr(Kernel, "launch", lambda kernel, grid, *arguments, **options: card.launch(kernel, grid, *arguments, **options))
    for module in (paged_decode, ragged_prefill):
        monkeypatch.setattr(module, "capability", lambda device: divmod(card.capability, 10))
    monkeypatch.setattr("inferometer.kernels.support.capability", lambda device: divmod(card.capability, 10))
    monkeypatch.setattr(paged_decode, "processors", lambda device: 100)
    return card


def pages(kv_heads: int, head_size: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    held, integers = torch.zeros(16, kv_heads, head_size, dtype=dtype), torch.zeros(2, dtype=torch.int32)
    return {"keys": held, "values": held, "table": torch.zeros(2, 16, dtype=torch.int32), "seats": integers, "contexts": integers}


def decode(card: Card, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, longest: int, biased: bool) -> None:
    query, slopes = torch.zeros(2, heads, head_size, dtype=dtype), torch.zeros(heads) if biased else None
    held = pages(kv_heads, head_size, dtype)
    paged_decode.paged_decode_triton(query, **held, page_size=16, scale=0.1, longest=longest, slopes=slopes)
    card.check(kernels=1 if longest < 512 else 2)


def prefill(card: Card, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, longest_query: int, biased: bool) -> None:
    query, slopes = torch.zeros(32, heads, head_size, dtype=dtype), torch.zeros(heads) if biased else None
    held = pages(kv_heads, head_size, dtype)
    starts = torch.zeros(3, dtype=torch.int32)
    ragged_prefill.ragged_prefill_triton(query, **held, starts=starts, page_size=16, scale=0.1, longest_query=longest_query, slopes=slopes)
    card.check(kernels=1)


def half(card: Card) -> torch.dtype:
    """The 16-bit type of such a card's models."""
    return torch.float16 if card.capability < 80 else torch.bfloat16


@pytest.mark.parametrize("card", [75, 80, 90], indirect=True)
class TestCommonCards:
    @pytest.mark.parametrize(("heads", "kv_heads", "head_size", "longest"), [(4, 4, 128, 4096), (4, 4, 80, 100), (4, 1, 256, 4096)])
    def test_decode(self, card: Card, heads: int, kv_heads: int, head_size: int, longest: int) -> None:
        decode(card, heads, kv_heads, head_size, half(card), longest, biased=head_size == 80)

    @pytest.mark.parametrize(("head_size", "longest_query"), [(128, 1000), (256, 1000), (64, 10)])
    def test_prefill(self, card: Card, head_size: int, longest_query: int) -> None:
        prefill(card, 4, 2, head_size, half(card), longest_query, biased=head_size == 256)

    def test_kv_write(self, card: Card) -> None:
        held = torch.zeros(4, 8, 80, dtype=half(card))
        kv_write.kv_write_triton(held, held, held, held, torch.zeros(4, dtype=torch.int64))
        card.check(kernels=1)


@pytest.mark.slow
@pytest.mark.parametrize("card", [75, 86, 90, 100, 120], indirect=True)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_size", [64, 128, 256])
class TestAllCards:
    @pytest.mark.parametrize("heads", [1, 48])
    def test_decode(self, card: Card, heads: int, head_size: int, dtype: torch.dtype) -> None:
        decode(card, heads, 1, head_size, dtype, 4096, biased=True)

    def test_prefill(self, card: Card, head_size: int, dtype: torch.dtype) -> None:
        prefill(card, 4, 2, head_size, dtype, 1000, biased=True)
