"""Every kernel compiles for the GPUs that the engine runs on, and its shared memory fits there. No GPU is needed for that."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from inferometer.kernels import (
    decode_short,
    eight_bit_matmul,
    embed,
    gate,
    head_choice,
    invariant_attention,
    invariant_linear,
    kv_scaled,
    kv_write,
    log_softmax,
    norm,
    paged_decode,
    quant_launch,
    quant_linear,
    quant_widened,
    ragged_prefill,
    rank_gather,
    rank_peaks,
    rank_rows,
    rank_sum,
    rotary_write,
    rounded_rows,
    skinny,
    spread_heads,
    token_bounds,
    token_choice,
)
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.kernels.support import Kernel
from inferometer.kernels.token_filters import Filters
from inferometer.kernels.token_rows import Bounds, Drawing, Places
from inferometer.model.spec import Activation, NormKind
from quant_cases import FORMATS, drawn_weight

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")

KIB = 1024
# Most shared memory of a block (CUDA C++ programming guide, technical specifications by compute capability).
SHARED = {75: 64 * KIB, 80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
TYPES |= {torch.float64: "*fp64", torch.int8: "*i8", torch.int16: "*i16", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv"}


@dataclass
class Card:
    """Stands in for a GPU: compiles what would be launched on it, with what the launch would tell the compiler."""

    capability: int
    built: list[Any] = field(default_factory=list)

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


def linear(card: Card, rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, residual = torch.zeros(rows, inputs, dtype=dtype), torch.zeros(rows, outputs, dtype=dtype)
    weight, bias = torch.zeros(1, dtype=dtype).expand(outputs, inputs), torch.zeros(outputs, dtype=dtype)
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


@pytest.mark.parametrize("card", [75, 80, 90], indirect=True)
class TestCommonCards:
    @pytest.mark.parametrize(("heads", "kv_heads", "head_size", "longest"), [(4, 4, 128, 4096), (4, 4, 80, 100), (4, 1, 256, 4096)])
    def test_decode(self, card: Card, heads: int, kv_heads: int, head_size: int, longest: int) -> None:
        decode(card, heads, kv_heads, head_size, half(card), longest, biased=head_size == 80)

    @pytest.mark.parametrize(("head_size", "longest_query"), [(128, 1000), (256, 1000), (64, 10)])
    def test_prefill(self, card: Card, head_size: int, longest_query: int) -> None:
        prefill(card, 4, 2, head_size, half(card), longest_query, biased=head_size == 256)

    @pytest.mark.parametrize("hidden", [768, 5120])
    def test_embed(self, card: Card, hidden: int) -> None:
        table, ids = torch.zeros(9, hidden, dtype=half(card)), torch.zeros(4, dtype=torch.int64)
        entries = embed.Entries(torch.zeros(5, 30, dtype=torch.int32), ids, ids, ids)
        weights = norm.NormWeights("layer", 1e-5, table[0], table[0])
        embed.embed_triton(embed.Tokens(ids, ids), table, embed.Positions(table, ids, 2), table[0], weights, entries)
        embed.embed_triton(embed.Tokens(ids), table)
        card.check(kernels=2)

    def test_kv_write(self, card: Card) -> None:
        held = torch.zeros(4, 8, 80, dtype=half(card))
        kv_write.kv_write_triton(held, held, held, held, torch.zeros(4, dtype=torch.int64))
        card.check(kernels=1)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
    def test_pages_in_8_bits(self, card: Card, dtype: torch.dtype) -> None:
        """Written, and read by decode attention of heads with keys of their own and of shared ones, and by prompts."""
        integers, starts = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        scales = kv_scaled.PageScales(*(torch.zeros(1, 4) for _ in range(2)))
        held = {"keys": torch.zeros(16, 4, 128, dtype=dtype), "values": torch.zeros(16, 4, 128, dtype=dtype), "seats": integers}
        held |= {"table": torch.zeros(2, 16, dtype=torch.int32), "contexts": integers}
        for tokens in (4, 2000):
            rows = torch.zeros(tokens, 4, 128, dtype=half(card))
            places = torch.zeros(tokens, dtype=torch.int64)
            kv_scaled.scaled_write_triton(rows, rows, held["keys"], held["values"], scales, places, 16)
        for heads in (4, 8):
            query = torch.zeros(2, heads, 128, dtype=half(card))
            paged_decode.paged_decode_triton(query, **held, page_size=16, scale=0.1, longest=4096, scales=scales)
            query = torch.zeros(32, heads, 128, dtype=half(card))
            ragged_prefill.ragged_prefill_triton(query, **held, starts=starts, page_size=16, scale=0.1, longest_query=32, scales=scales)
        card.check(kernels=6)

    @pytest.mark.parametrize("head_size", [80, 128])
    def test_rotary_write(self, card: Card, head_size: int) -> None:
        heads, held = torch.zeros(4, 8, head_size, dtype=half(card)), torch.zeros(4, 2, head_size, dtype=half(card))
        table = torch.zeros(4, 1, head_size, dtype=half(card))
        rotary_write.rotary_write_triton(heads, table, table, held, held, torch.zeros(4, dtype=torch.int64))
        card.check(kernels=1)

    @pytest.mark.parametrize("head_size", [80, 128, 256])
    def test_spread_heads(self, card: Card, head_size: int) -> None:
        heads, turned = torch.zeros(4, 8, head_size, dtype=half(card)), torch.zeros(4, 1, head_size, dtype=half(card))
        spread_heads.spread_heads_triton(heads, 6, None)
        spread_heads.spread_heads_triton(heads, 6, (turned, turned))
        card.check(kernels=2)

    @pytest.mark.parametrize("kind", ["layer", "rms"])
    @pytest.mark.parametrize("hidden", [768, 5120, 16384])
    def test_norm(self, card: Card, kind: NormKind, hidden: int) -> None:
        x, weight = torch.zeros(4, hidden, dtype=half(card)), torch.zeros(hidden, dtype=half(card))
        norm.norm_triton(x, x.clone(), kind=kind, epsilon=1e-5, weight=weight, bias=weight if kind == "layer" else None)
        norm.norm_triton(x, kind=kind, epsilon=1e-5)
        card.check(kernels=2)

    @pytest.mark.parametrize("activation", get_args(Activation))
    def test_gate(self, card: Card, activation: Activation) -> None:
        gate.gate_triton(torch.zeros(4, 2 * 5632, dtype=half(card)), activation)
        card.check(kernels=1)

    @pytest.mark.parametrize(
        ("rows", "outputs", "inputs"), [(1, 8192, 2048), (1, 2048, 8192), (3, 1000, 300), (16, 2048, 4096), (32, 8192, 64)]
    )
    def test_skinny(self, card: Card, rows: int, outputs: int, inputs: int) -> None:
        linear(card, rows, outputs, inputs, half(card))

    @pytest.mark.parametrize(("outputs", "inputs"), [(8192, 2048), (2304, 768), (100, 5120)])
    @pytest.mark.parametrize("kind", ["layer", "rms"])
    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_skinny_normed(self, card: Card, rows: int, outputs: int, inputs: int, kind: NormKind) -> None:
        x, weight = torch.zeros(rows, inputs, dtype=half(card)), torch.zeros(outputs, inputs, dtype=half(card))
        skinny.skinny_triton(x, weight, norm=norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None))
        card.check(kernels=1)

    @pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(4, 4, 128), (4, 4, 80), (8, 2, 64)])
    @pytest.mark.parametrize("turned", [False, True])
    def test_decode_that_writes_its_keys(self, card: Card, heads: int, kv_heads: int, head_size: int, turned: bool) -> None:
        rows = torch.zeros(2, heads + 2 * kv_heads, head_size, dtype=half(card))
        query, key, value = torch.split(rows, [heads, kv_heads, kv_heads], 1)
        angles = (rows[:, :1].contiguous(), rows[:, :1].contiguous()) if turned else None
        fresh = paged_decode.Fresh(key, value, angles)
        paged_decode.paged_decode_triton(
            query, **pages(kv_heads, head_size, half(card)), page_size=16, scale=0.1, longest=4096, fresh=fresh
        )
        card.check(kernels=1)

    @pytest.mark.parametrize(("heads", "head_size"), [(16, 128), (32, 64)])
    @pytest.mark.parametrize("turned", [False, True])
    def test_decode_of_short_contexts_and_the_map_behind(self, card: Card, heads: int, head_size: int, turned: bool) -> None:
        rows = torch.zeros(1, 3 * heads, head_size, dtype=half(card))
        query, key, value = torch.split(rows, [heads] * 3, 1)
        angles = (rows[:, :1].contiguous(), rows[:, :1].contiguous()) if turned else None
        slopes = None if turned else torch.zeros(heads)
        fresh = paged_decode.Fresh(key, value, angles)
        held = pages(heads, head_size, half(card))
        found = decode_short.decode_parts(query, **held, page_size=16, scale=0.1, longest=512, fresh=fresh, slopes=slopes)
        weight, residual = torch.zeros(1000, heads * head_size, dtype=half(card)), torch.zeros(1, 1000, dtype=half(card))
        skinny.skinny_joined(found, weight, residual[0], residual, candidates(1, heads * head_size)[0])
        card.check(kernels=2)

    @pytest.mark.parametrize(("drawn", "bounded"), [(False, False), (True, False), (True, True)])
    def test_token_choice(self, card: Card, drawn: bool, bounded: bool) -> None:
        choose(card, 4, 50258, half(card), drawn=drawn, bounded=bounded)

    def test_token_choice_of_edited_scores(self, card: Card) -> None:
        choose(card, 4, 250880, torch.float32, drawn=True, bounded=True)

    @pytest.mark.parametrize("asked", ["top_k", "tails", "masses"])
    def test_token_bounds(self, card: Card, asked: str) -> None:
        rows = drawing(4)
        parts = {"top_k": rows.samples, "tails": rows.temperatures, "masses": rows.temperatures}
        wanted: dict[str, Any] = {asked: parts[asked]}
        token_bounds.bounds_triton(torch.zeros(4, 50258, dtype=half(card)), Filters(rows.temperatures, **wanted))
        card.check(kernels=1)

    @pytest.mark.parametrize("rows", [1, 16])
    def test_head_choice(self, card: Card, rows: int) -> None:
        x, weight = torch.zeros(rows, 512, dtype=half(card)), torch.zeros(1000, 512, dtype=half(card))
        head_choice.choose_best_triton(x, weight, Places.on(x.device, rows))
        head_choice.choose_best_triton(x, weight, Places.on(x.device, rows), norm=norm.NormWeights("layer", 1e-5, x[0], x[0]))
        card.check(kernels=4)

    def test_rank_peaks(self, card: Card) -> None:
        x, weight = torch.zeros(2, 512, dtype=half(card)), torch.zeros(1000, 512, dtype=half(card))
        rank_peaks.product_peaks(x, weight, 1000, candidates(2, 512)[0])
        peaks = rank_peaks.row_peaks_triton(torch.zeros(2, 9000, dtype=half(card)), 1000)
        rank_peaks.choose_among_triton(torch.cat((peaks, peaks), 1), Places.on(x.device, 2))
        card.check(kernels=5)

    @pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 2048, 1024), (100, 16384, 300), (300, 2048, 1024)])
    def test_invariant_linear(self, card: Card, rows: int, outputs: int, inputs: int) -> None:
        invariant(card, rows, outputs, inputs, half(card))

    @pytest.mark.parametrize(("head_size", "biased"), [(80, True), (128, False), (256, False)])
    def test_invariant_attention(self, card: Card, head_size: int, biased: bool) -> None:
        attention(card, 4, 2, head_size, half(card), biased)

    @pytest.mark.parametrize("name", ["int8", "fp8", "int4 g64"])
    @pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 512, 2048), (7, 100, 330)])
    def test_few_rows_and_few_bits(self, card: Card, name: str, rows: int, outputs: int, inputs: int) -> None:
        weight, x = drawn_weight(outputs, inputs, **FORMATS[name]), torch.zeros(rows, inputs, dtype=half(card))
        residual = torch.zeros(rows, outputs, dtype=half(card))
        launches = [launch for launch in quant_candidates(rows, weight) if launch.whole or card.capability >= 80]
        for launch in launches[:1]:
            quant_linear.quant_linear_triton(x, weight, residual[0], activation="gelu_tanh", residual=residual, launch=launch)
        card.check(kernels=len(launches[:1]))

    @pytest.mark.parametrize("name", ["int8", "fp8", "int4 g64"])
    def test_weights_are_widened(self, card: Card, name: str) -> None:
        quant_widened.widened_triton(drawn_weight(8, 256, **FORMATS[name]), half(card))
        card.check(kernels=1)

    @pytest.mark.parametrize("vocabulary", [300, 50257])
    def test_log_softmax(self, card: Card, vocabulary: int) -> None:
        log_softmax.log_softmax_triton(torch.zeros(4, vocabulary))
        card.check(kernels=1)


@pytest.mark.parametrize("card", [80, 90], indirect=True)
class TestRanks:
    """Cards that reach each other."""

    @pytest.mark.parametrize(("size", "hidden"), [(2, 4096), (4, 4096), (8, 4096), (3, 7168), (2, 768)])
    @pytest.mark.parametrize("kind", ["layer", "rms"])
    def test_rank_sum(self, card: Card, size: int, hidden: int, kind: NormKind) -> None:
        box, x = mailbox(size), torch.zeros(3, hidden, dtype=torch.bfloat16)
        rank_sum.rank_sum_norm(x, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None), box)
        rank_sum.rank_sum(x, box)
        rank_sum.rank_sum(torch.zeros(2, dtype=torch.float32), box)
        rank_sum.rank_sum_add(x[0, :768], x[1, :768], box)
        card.check(kernels=4)

    @pytest.mark.parametrize(("size", "hidden"), [(2, 4096), (4, 8192), (8, 4096), (3, 7168), (2, 768)])
    @pytest.mark.parametrize("kind", ["layer", "rms"])
    def test_rank_rows(self, card: Card, size: int, hidden: int, kind: NormKind) -> None:
        shared, x = shared_rows(size), torch.zeros(3, hidden, dtype=torch.bfloat16)
        rank_rows.rank_rows(x, shared, 0, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None))
        rank_rows.rank_rows(x, shared, 1)
        rank_rows.rank_copies(x, shared, 0)
        card.check(kernels=3)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.uint8])
    def test_rank_gather(self, card: Card, dtype: torch.dtype) -> None:
        rank_gather.rank_gather(torch.zeros(3, 5, dtype=dtype), torch.zeros(3, 10, dtype=dtype), mailbox(2))
        card.check(kernels=1)


def shared_rows(size: int) -> rank_rows.SharedRows:
    slot, programs = 1 << 20, 8
    memory = torch.empty(rank_rows.SharedRows.nbytes(size, slot, programs), dtype=torch.uint8)
    return rank_rows.SharedRows.over(size - 1, slot, programs, memory, [memory.data_ptr()] * size)


def mailbox(size: int) -> Mailbox:
    words = torch.empty(Mailbox.shape(size, 2048, 4), dtype=torch.int64)
    return Mailbox.over(size - 1, words, [words.data_ptr()] * size)


@pytest.mark.parametrize("card", [90], indirect=True)
def test_ranks_are_added_one_after_another(card: Card) -> None:
    """No two sums are added: each has one more rank's number than the one before."""
    rank_sum.rank_sum(torch.zeros(1, 4096, dtype=torch.bfloat16), mailbox(4))
    added = re.findall(r"add\.f32\s+(%r\d+), (%r\d+), (%r\d+)", card.built[0].asm["ptx"])
    sums = {total for total, _, _ in added}
    assert len(added) == 3 * 8
    assert sum(first in sums for _, first, _ in added) == 2 * 8
    assert not any(second in sums for _, _, second in added)


@pytest.mark.parametrize("card", [90], indirect=True)
def test_sums_over_ranks_are_written_and_watched_past_all_caches(card: Card) -> None:
    """Each thread waits for its own words, in whole ones, and nothing but weights is touched before the kernel ahead has ended."""
    x = torch.zeros(1, 4096, dtype=torch.bfloat16)
    rank_sum.rank_sum_norm(x, x.clone(), norm.NormWeights("layer", 1e-5, x[0], x[0]), mailbox(2))
    card.check(kernels=1)
    before, behind = (part.splitlines() for part in card.built[0].asm["ptx"].split("griddepcontrol.wait"))
    assert sum("ld.global" in line for line in before) == 2
    assert not any("st." in line for line in before)
    assert sum("st.relaxed.sys.global.b64" in line for line in behind) == 4  # two words a thread, to two ranks
    assert sum("ld.volatile.global.b64" in line for line in behind) == 8  # two words from two ranks, and again
    assert "STACK:0" in resources(card.built[0].asm["cubin"])


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize(("name", "types"), [("int8", "s32.s8.s8"), ("fp8", "f32.e4m3.e4m3")])
def test_bytes_are_multiplied_as_they_lie(card: Card, name: str, types: str) -> None:
    """Every launch of the table, by Hopper's matrix instructions for bytes and no other, and nothing spilled."""
    weight, x = drawn_weight(512, 1024, **FORMATS[name]), torch.zeros(16, 1024, dtype=torch.bfloat16)
    for outputs, block, warps, stages, programs in quant_launch.BYTES:
        launch = Tiling(outputs, block, warps, stages, programs, early=True, in_bytes=True)
        quant_linear.quant_linear_triton(x, weight, x[0, :512], activation="relu", launch=launch)
    card.check(kernels=len(quant_launch.BYTES))
    for built in card.built:
        assert set(re.findall(r"wgmma\.mma_async\S*k32\.(\S+)", built.asm["ptx"])) == {types}
        assert "mma.sync.aligned.m16" not in built.asm["ptx"]
        assert "STACK:0" in resources(built.asm["cubin"])


@pytest.mark.parametrize("card", [90], indirect=True)
def test_every_row_of_invariant_kernels_goes_through_one_kind_of_matrix_instruction(card: Card) -> None:
    """Of 64 rows, and 16 numbers a step: tiles of other sizes would be others, and might round in another way."""
    for rows in (1, 100, 300):
        x, weight = torch.zeros(rows, 4096, dtype=torch.bfloat16), torch.zeros(4096, 4096, dtype=torch.bfloat16)
        invariant_linear.invariant_linear_triton(x, weight)
    query, starts = torch.zeros(32, 4, 128, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int32)
    invariant_attention.invariant_attention_triton(query, **pages(4, 128, torch.bfloat16), starts=starts, page_size=16, scale=0.1)
    card.check(kernels=4)
    for built in card.built:
        products = re.findall(r"(?:wgmma\.mma_async|mma)\.sync\.aligned\.(m\d+)n\d+(k\d+)", built.asm["ptx"])
        assert set(products) == {("m64", "k16")}


@pytest.mark.parametrize("card", [90], indirect=True)
def test_nothing_but_old_pages_is_read_before_the_kernel_ahead_has_ended(card: Card) -> None:
    rows = torch.zeros(2, 12, 128, dtype=torch.bfloat16)
    fresh = paged_decode.Fresh(rows[:, 4:8], rows[:, 8:])
    paged_decode.paged_decode_triton(rows[:, :4], **pages(4, 128, torch.bfloat16), page_size=16, scale=0.1, longest=100, fresh=fresh)
    before, behind = (part.splitlines() for part in card.built[0].asm["ptx"].split("griddepcontrol.wait"))
    assert any("prefetch.global.L2" in line for line in before)
    assert not any("st.global" in line for line in before)
    # Of one block of 32 keys and values 16 bytes a thread, four times each; heads of the sweep come in two bytes a thread, behind.
    assert sum("ld.global" in line and ".v4.b32" in line for line in before) == 8
    assert not any("ld.global.b16" in line for line in before)
    assert any("ld.global.b16" in line for line in behind)
    assert any("st.global" in line for line in behind)
    assert card.built[0].metadata.maxnreg == 128


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("head_size", [64, 80, 128])
def test_attention_that_fetches_ahead_keeps_in_its_registers(card: Card, head_size: int) -> None:
    """It is bounded to what is left beside a product, and nothing goes to memory for that."""
    rows = torch.zeros(2, 12, head_size, dtype=torch.bfloat16)
    fresh, slopes = paged_decode.Fresh(rows[:, 4:8], rows[:, 8:]), torch.zeros(4)
    for longest in (100, 1000):
        named = {"page_size": 16, "scale": 0.1, "longest": longest, "slopes": slopes, "fresh": fresh}
        paged_decode.paged_decode_triton(rows[:, :4], **pages(4, head_size, torch.bfloat16), **named)
    for built in card.built:
        assert built.metadata.maxnreg == 128
        assert "STACK:0" in resources(built.asm["cubin"])


def resources(cubin: bytes) -> str:
    """What the disassembler says of a kernel: registers, stack, shared memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("vocabulary", [50258, 250880])
def test_logits_are_read_16_bytes_at_a_time_whatever_the_vocabulary(card: Card, vocabulary: int) -> None:
    """Where rows begin at multiples of that; the last block of a row is masked."""
    room = torch.zeros(2, 250880 + 64, dtype=torch.bfloat16)[:, :vocabulary]
    token_choice.choose_triton(room, Places.on(room.device, 2))
    card.check(kernels=2)
    before, behind = card.built[0].asm["ptx"].split("griddepcontrol.wait")
    assert "ld.global" not in before
    assert sum(".v4.b32" in line for line in behind.splitlines() if "ld.global" in line) == 2


@pytest.mark.parametrize("card", [90], indirect=True)
def test_weights_are_read_16_bytes_at_a_time_and_before_the_kernel_ahead_has_ended(card: Card) -> None:
    linear(card, 1, 8192, 2048, torch.bfloat16)
    code = card.built[0].asm["ptx"]
    before, behind = code.split("griddepcontrol.wait")
    assert ".v4.b32" in before
    assert "evict_last" not in before  # x
    assert all(".v4.b32" in line for line in before.splitlines() if "ld.global" in line)
    assert all(".v4.b32" in line for line in behind.splitlines() if "ld.global" in line and "evict" in line)


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("rows", [5, 32])
def test_weights_are_copied_to_where_matrix_instructions_read_them(card: Card, rows: int) -> None:
    linear(card, rows, 2048, 8192, torch.bfloat16)
    before, behind = card.built[0].asm["ptx"].split("griddepcontrol.wait")
    assert "prefetch.global.L2" in before
    assert "ld.global" not in before
    assert "cp.async" not in before
    assert "wgmma" in behind
    copies = [line for line in behind.splitlines() if "cp.async" in line and "shared.global" in line]
    assert copies
    assert all(", 0x10" in line for line in copies)


@pytest.mark.parametrize("card", [90], indirect=True)
def test_kernels_between_products_touch_nothing_before_the_kernel_ahead_has_ended(card: Card) -> None:
    x, heads, held = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((4, 4096), (4, 48, 128), (4, 8, 128)))
    norm.norm_triton(x, x.clone(), kind="layer", epsilon=1e-5, weight=x[0], bias=x[0])
    gate.gate_triton(x, "silu")
    rotary_write.rotary_write_triton(heads, heads[:, :1].contiguous(), heads[:, :1].contiguous(), held, held, torch.zeros(4).long())
    card.check(kernels=3)
    for built in card.built:
        assert built.metadata.launch_pdl
        before, behind = built.asm["ptx"].split("griddepcontrol.wait")
        assert "launch_dependents" in before
        assert not any(access in before for access in ("ld.global", "st.global"))
        accesses = [line for line in behind.splitlines() if "ld.global" in line or "st.global" in line]
        assert all(".v4.b32" in line or "ld.global.b64" in line for line in accesses)  # 16 bytes; a place


@pytest.mark.parametrize(("card", "kind"), [(80, "int8"), (90, "int8"), (89, "fp8"), (90, "fp8")], indirect=["card"])
def test_eight_bits_by_eight_bits(card: Card, kind: rounded_rows.Rounded) -> None:
    x, weight = torch.zeros(300, 1024, dtype=torch.bfloat16), drawn_weight(512, 1024, kind)
    levels, scale = rounded_rows.round_rows_triton(x, kind)
    tiles = eight_bit_matmul.blocks(x.device)
    for chosen in tiles:
        eight_bit_matmul.eight_bit_matmul(levels, scale, weight, x.dtype, x[0, :512], activation="gelu", chosen=chosen)
    card.check(kernels=1 + len(tiles))
    if card.capability == 90:
        assert all("wgmma" in built.asm["ptx"] for built in card.built[1:])


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("name", ["int8", "fp8", "int4 g64", "int4 g32"])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 768), (1, 16384), (4, 4096)])
def test_sums_are_over_tensors_as_they_were_dealt_out(card: Card, name: str, rows: int, inputs: int) -> None:
    """Threads of a sum are then neighbours, and so are its warps. Where a tensor has been folded they may not be, and Triton 3.6 adds up
    those of other outputs."""
    weight, x = drawn_weight(64, inputs, **FORMATS[name]), torch.zeros(rows, inputs, dtype=torch.bfloat16)
    launches = [launch for launch in quant_candidates(rows, weight) if launch.whole]
    for launch in launches:
        quant_linear.quant_linear_triton(x, weight, launch=launch)
    assert launches
    card.check(kernels=len(launches))
    for built in card.built:
        code = built.asm["ttgir"]
        layouts = dict(re.findall(r"^(#\w+) = (#\S+?)<", code, re.MULTILINE))
        summed = re.findall(r'"tt\.reduce"\(.*?\n(?:.*\n)*?\s+\}\) : \((tensor<.*?>)\) -> ', code)
        assert len(summed) >= rows
        for of in summed:
            names = [name for name in re.findall(r"#\w+", of) if name != "#ttg"]
            assert names
            assert all(layouts[name] == "#ttg.blocked" for name in names), of


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("name", ["int8", "int4 g64"])
def test_few_bits_are_read_16_bytes_at_a_time(card: Card, name: str) -> None:
    """And before the kernel ahead has ended, where rows are whole; else copied to where the threads that multiply them read them."""
    weight, dtype = drawn_weight(512, 4096, **FORMATS[name]), torch.bfloat16
    whole, few = (next(one for one in quant_candidates(rows, weight) if one.whole == (rows == 1)) for rows in (1, 16))
    quant_linear.quant_linear_triton(torch.zeros(1, 4096, dtype=dtype), weight, launch=whole)
    before, behind = card.built[0].asm["ptx"].split("griddepcontrol.wait")
    for text in (before, behind):
        assert any("evict_first" in line and ".v4.b32" in line for line in text.splitlines() if "ld.global" in line)
    assert "dp4a" in behind
    quant_linear.quant_linear_triton(torch.zeros(16, 4096, dtype=dtype), weight, launch=few)
    before, behind = card.built[1].asm["ptx"].split("griddepcontrol.wait")
    assert "prefetch.global.L2" in before
    assert "cp.async" not in before
    assert "mma" in behind
    assert any(", 0x10" in line for line in behind.splitlines() if "cp.async" in line and "shared.global" in line)


@pytest.mark.parametrize(("card", "rows"), [(80, 16), (90, 16), (90, 64)], indirect=["card"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_thread_has_widened_is_what_it_multiplies(card: Card, rows: int, name: str) -> None:
    """Nothing but what is copied from memory goes through shared memory in the loop."""
    weight, x = drawn_weight(512, 4096, **FORMATS[name]), torch.zeros(rows, 4096, dtype=torch.bfloat16)
    quant_linear.quant_linear_triton(x, weight, launch=quant_candidates(rows, weight)[0])
    card.check(kernels=1)
    code = card.built[0].asm["ttgir"]
    assert "ttg.async_copy_global_to_local" in code
    assert not re.search(r"ttg\.local_alloc %|ttg\.local_store", code)


@pytest.mark.slow
@pytest.mark.parametrize("card", [80, 90], indirect=True)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 4, 16, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(768, 768), (2048, 8192), (8192, 2048)])
def test_all_launches_of_few_bits(card: Card, rows: int, name: str, outputs: int, inputs: int) -> None:
    weight, x = drawn_weight(outputs, inputs, **FORMATS[name]), torch.zeros(rows, inputs, dtype=torch.bfloat16)
    launches = quant_candidates(rows, weight)
    for launch in launches:
        quant_linear.quant_linear_triton(x, weight, launch=launch)
    card.check(kernels=len(launches))


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

    def test_invariant_attention(self, card: Card, head_size: int, dtype: torch.dtype) -> None:
        attention(card, 4, 2, head_size, dtype, biased=True)


@pytest.mark.slow
@pytest.mark.parametrize("card", [75, 86, 90, 100, 120], indirect=True)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 100, 300])
def test_invariant_linear_on_all_cards(card: Card, rows: int, dtype: torch.dtype) -> None:
    invariant(card, rows, 2048, 2048, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("rows", [1, 16, 32])
@pytest.mark.parametrize(("outputs", "inputs"), [(768, 768), (2048, 8192), (8192, 2048)])
def test_all_launches_of_linear_maps(card: Card, rows: int, outputs: int, inputs: int) -> None:
    for launch in candidates(rows, inputs):
        x, weight = torch.zeros(rows, inputs, dtype=torch.bfloat16), torch.zeros(outputs, inputs, dtype=torch.bfloat16)
        skinny.skinny_triton(x, weight, launch=launch)
    card.check(kernels=len(candidates(rows, inputs)))
