"""Kernels as they are compiled for a GPU that is not there: what stands in for the card, and the launches that tests share."""

from __future__ import annotations

import inspect
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.kernels import (
    eight_bit_matmul,
    invariant_attention,
    invariant_linear,
    paged_decode,
    quant_linear,
    ragged_prefill,
    rank_gather,
    rank_rows,
    rank_sum,
    skinny,
    token_choice,
)
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.support import Kernel
from inferometer.kernels.token_rows import Bounds, Drawing, Places

triton = pytest.importorskip("triton")

KIB = 1024
# Most shared memory of a block (CUDA C++ programming guide, technical specifications by compute capability).
SHARED = {75: 64 * KIB, 80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
TYPES |= {torch.float64: "*fp64", torch.int8: "*i8", torch.int16: "*i16", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv"}


@dataclass
class Card:
    """Stands in for a GPU: compiles what would be launched on it, with what the launch would tell the compiler.

    whole: whether to machine code, and not only so far that it says where tensors lie, which takes a fifth of the time.
    layouts: of each launch that was not compiled whole, the code that says so.
    """

    capability: int
    built: list[Any] = field(default_factory=list)
    whole: bool = True
    layouts: list[str] = field(default_factory=list)

    def launch(self, kernel: Kernel, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        assert all(0 < size < 65536 for size in grid[1:])
        launch = {name: options.pop(name) for name in ("num_warps", "num_stages", "launch_pdl", "maxnreg") if name in options}
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
        if self.whole:
            self.built.append(triton.compile(source, target=target, options=launch))
        else:
            self.layouts.append(laid_out(source, target, launch))

    def check(self, kernels: int) -> None:
        assert len(self.built) == kernels
        for built in self.built:
            assert built.asm["cubin"]
            assert built.metadata.shared <= SHARED[self.capability]


def laid_out(source: Any, target: Any, launch: dict[str, Any]) -> str:
    """What `triton.compile` has made of a kernel when the layout of every tensor stands."""
    backend = triton.compiler.make_backend(target)
    options, metadata, stages = backend.parse_options({**launch, **source.parse_options()}), {}, {}
    context = triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, options, source.language)
    module = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    for stage in ("ttir", "ttgir"):
        module = stages[stage](module, metadata)
    return str(module)


def card_of(capability: int, monkeypatch: pytest.MonkeyPatch) -> Card:
    """Where every kernel of this process is launched from now on, by its compute capability (90 for 9.0)."""
    card = Card(capability)
    monkeypatch.setattr(Kernel, "launch", lambda kernel, grid, *arguments, **options: card.launch(kernel, grid, *arguments, **options))
    kernels = (
        paged_decode,
        ragged_prefill,
        skinny,
        invariant_linear,
        invariant_attention,
        quant_linear,
        eight_bit_matmul,
        rank_sum,
        rank_rows,
        rank_gather,
    )
    for module in kernels:
        monkeypatch.setattr(module, "capability", lambda device: divmod(card.capability, 10))
    monkeypatch.setattr("inferometer.kernels.support.capability", lambda device: divmod(card.capability, 10))
    for module in (paged_decode, skinny, invariant_linear, quant_linear):
        monkeypatch.setattr(module, "processors", lambda device: 100)
    return card


def pages(kv_heads: int, head_size: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    held, integers = torch.zeros(16, kv_heads, head_size, dtype=dtype), torch.zeros(2, dtype=torch.int32)
    return {"keys": held, "values": held, "table": torch.zeros(2, 16, dtype=torch.int32), "seats": integers, "contexts": integers}


def decode(card: Card, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, longest: int, biased: bool) -> None:
    query, slopes = torch.zeros(2, heads, head_size, dtype=dtype), torch.zeros(heads) if biased else None
    held = pages(kv_heads, head_size, dtype)
    paged_decode.paged_decode_triton(query, **held, page_size=16, scale=0.1, longest=longest, slopes=slopes)
    card.check(kernels=1)


def prefill(card: Card, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, longest_query: int, biased: bool) -> None:
    query, slopes = torch.zeros(32, heads, head_size, dtype=dtype), torch.zeros(heads) if biased else None
    held = pages(kv_heads, head_size, dtype)
    starts = torch.zeros(3, dtype=torch.int32)
    ragged_prefill.ragged_prefill_triton(query, **held, starts=starts, page_size=16, scale=0.1, longest_query=longest_query, slopes=slopes)
    card.check(kernels=1)


def linear(card: Card, rows: int, outputs: int, inputs: int, dtype: torch.dtype, *, biased: bool = True) -> None:
    x, residual = torch.zeros(rows, inputs, dtype=dtype), torch.zeros(rows, outputs, dtype=dtype)
    weight, bias = torch.zeros(1, dtype=dtype).expand(outputs, inputs), torch.zeros(outputs, dtype=dtype) if biased else None
    weight.is_contiguous = lambda: True  # type: ignore[method-assign, assignment]  # as large as it says, without the memory
    skinny.skinny_triton(x, weight, bias, activation="gelu_tanh", residual=residual)
    card.check(kernels=1)


def drawing(rows: int) -> Drawing:
    """As in the table that an engine has of its rows: words of many types."""
    words = torch.zeros(rows, 68, dtype=torch.int64)
    return Drawing(words[:, 0], words.view(torch.float32)[:, 4], words.view(torch.float64)[:, 4:], torch.zeros(1, dtype=torch.int64))


def choose(card: Card, rows: int, vocabulary: int, dtype: torch.dtype, *, drawn: bool, bounded: bool) -> None:
    logits, whole = torch.zeros(rows, vocabulary, dtype=dtype), torch.zeros(rows, dtype=torch.int32)
    left = Bounds(torch.zeros(rows), whole, torch.zeros(rows)) if bounded else None
    places = Places.on(logits.device, rows).seated(whole.long(), whole.long())
    token_choice.choose_triton(logits, places, drawing(rows) if drawn else None, left)
    card.check(kernels=2)


def invariant(card: Card, rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, residual = torch.zeros(rows, inputs, dtype=dtype), torch.zeros(rows, outputs, dtype=dtype)
    weight, bias = torch.zeros(outputs, inputs, dtype=dtype), torch.zeros(outputs, dtype=dtype)
    invariant_linear.invariant_linear_triton(x, weight, bias, activation="gelu_tanh", residual=residual)
    card.check(kernels=1)


def attention(card: Card, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool) -> None:
    query, slopes = torch.zeros(32, heads, head_size, dtype=dtype), torch.zeros(heads) if biased else None
    held, starts = pages(kv_heads, head_size, dtype), torch.zeros(3, dtype=torch.int32)
    invariant_attention.invariant_attention_triton(query, **held, starts=starts, page_size=16, scale=0.1, slopes=slopes)
    card.check(kernels=1)


def half(card: Card) -> torch.dtype:
    """The 16-bit type of such a card's models."""
    return torch.float16 if card.capability < 80 else torch.bfloat16


def shared_rows(size: int) -> rank_rows.SharedRows:
    slot, programs = 1 << 20, 8
    memory = torch.empty(rank_rows.SharedRows.nbytes(size, slot, programs), dtype=torch.uint8)
    return rank_rows.SharedRows.over(size - 1, slot, programs, memory, [memory.data_ptr()] * size)


def mailbox(size: int) -> Mailbox:
    words = torch.empty(Mailbox.shape(size, 2048, 4), dtype=torch.int64)
    return Mailbox.over(size - 1, words, [words.data_ptr()] * size)


def resources(cubin: bytes) -> str:
    """What the disassembler says of a kernel: registers, stack, shared memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
