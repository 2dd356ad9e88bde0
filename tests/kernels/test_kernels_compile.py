"""Every kernel compiles for the GPUs that the engine runs on, and its shared memory fits there. No GPU is needed for that."""

from __future__ import annotations

import os
from typing import Any, get_args

import pytest
import torch

from compiled_kernels import (
    Card,
    attention,
    choose,
    decode,
    drawing,
    half,
    invariant,
    linear,
    pages,
    prefill,
)
from inferometer.kernels import (
    decode_short,
    embed,
    gate,
    head_choice,
    kv_scaled,
    kv_write,
    log_softmax,
    norm,
    paged_decode,
    quant_linear,
    quant_widened,
    ragged_prefill,
    rank_peaks,
    rotary_write,
    skinny,
    spread_heads,
    token_bounds,
)
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.skinny_launch import candidates
from inferometer.kernels.token_filters import Filters
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import Activation, NormKind
from quant_cases import FORMATS, drawn_weight

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")


@pytest.mark.parametrize("card", [75, 80, 90], indirect=True)
class TestCommonCards:
    @pytest.mark.parametrize(
        ("heads", "kv_heads", "head_size", "longest"),
        [(4, 4, 128, 4096), (4, 4, 80, 100), (4, 1, 256, 4096), (32, 8, 128, 100), (100, 100, 64, 100)],
    )
    def test_decode(self, card: Card, heads: int, kv_heads: int, head_size: int, longest: int) -> None:
        decode(card, heads, kv_heads, head_size, half(card), longest, biased=head_size == 80)

    @pytest.mark.parametrize(("head_size", "longest_query"), [(128, 1000), (256, 1000), (64, 10)])
    def test_prefill(self, card: Card, head_size: int, longest_query: int) -> None:
        prefill(card, 4, 2, head_size, half(card), longest_query, biased=head_size == 256)

    @pytest.mark.parametrize("hidden", [768, 5120])
    def test_embed(self, card: Card, hidden: int) -> None:
        table, ids = torch.zeros(9, hidden, dtype=half(card)), torch.zeros(4, dtype=torch.int64)
        held, few = (embed.TokenTable(matrix, half(card)) for matrix in (table, drawn_weight(9, hidden, "int8")))
        entries = embed.Entries(torch.zeros(5, 30, dtype=torch.int32), ids, ids, ids)
        weights = norm.NormWeights("layer", 1e-5, table[0], table[0])
        embed.embed_triton(embed.Tokens(ids, ids), held, embed.Positions(table, ids, 2), table[0], weights, entries)
        embed.embed_triton(embed.Tokens(ids), held)
        embed.embed_triton(embed.Tokens(ids), few)
        card.check(kernels=3)

    def test_kv_write(self, card: Card) -> None:
        held = torch.zeros(4, 8, 80, dtype=half(card))
        kv_write.kv_write_triton(held, held, held, held, torch.zeros(4, dtype=torch.int64))
        card.check(kernels=1)

    @pytest.mark.parametrize(("dtype", "head_size"), [(torch.int8, 128), (torch.float8_e4m3fn, 64)])
    def test_pages_in_8_bits(self, card: Card, dtype: torch.dtype, head_size: int) -> None:
        """Written, and read by decode attention of heads with keys of their own and of shared ones, and by prompts."""
        integers, starts = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        scales = kv_scaled.PageScales(*(torch.zeros(1, 4) for _ in range(2)))
        held = {"keys": torch.zeros(16, 4, head_size, dtype=dtype), "values": torch.zeros(16, 4, head_size, dtype=dtype), "seats": integers}
        held |= {"table": torch.zeros(2, 16, dtype=torch.int32), "contexts": integers}
        for tokens in (4, 2000):
            rows = torch.zeros(tokens, 4, head_size, dtype=half(card))
            places = torch.zeros(tokens, dtype=torch.int64)
            kv_scaled.scaled_write_triton(rows, rows, held["keys"], held["values"], scales, places, 16)
        for heads in (4, 8):
            query = torch.zeros(2, heads, head_size, dtype=half(card))
            paged_decode.paged_decode_triton(query, **held, page_size=16, scale=0.1, longest=4096, scales=scales)
        query = torch.zeros(32, 8, head_size, dtype=half(card))
        ragged_prefill.ragged_prefill_triton(query, **held, starts=starts, page_size=16, scale=0.1, longest_query=32, scales=scales)
        card.check(kernels=5)

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

    @pytest.mark.parametrize(("kind", "hidden"), [("layer", 768), ("rms", 5120), ("layer", 16384), ("rms", 16384)])
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

    @pytest.mark.parametrize(
        ("kind", "rows", "outputs", "inputs"),
        [
            ("layer", 1, 8192, 2048),
            ("layer", 2, 2304, 768),
            ("layer", 3, 100, 3000),
            ("rms", 1, 100, 3000),
            ("rms", 2, 8192, 2048),
            ("rms", 3, 2304, 768),
        ],
    )
    def test_skinny_normed(self, card: Card, kind: NormKind, rows: int, outputs: int, inputs: int) -> None:
        x, weight = torch.zeros(rows, inputs, dtype=half(card)), torch.zeros(outputs, inputs, dtype=half(card))
        whole = next(launch for launch in candidates(rows, inputs) if launch.whole)
        skinny.skinny_triton(x, weight, norm=norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None), launch=whole)
        card.check(kernels=1)

    @pytest.mark.parametrize(
        ("heads", "kv_heads", "head_size", "turned"),
        [(4, 4, 128, False), (4, 4, 128, True), (4, 4, 80, True), (8, 2, 64, False), (8, 2, 64, True)],
    )
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
    card.check(kernels=len(launches) + sum(launch.readied for launch in launches))


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
