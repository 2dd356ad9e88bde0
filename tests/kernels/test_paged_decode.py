"""One query token a sequence: the reference against the formula, the kernels against both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferometer.kernels import paged_decode as decode
from inferometer.kernels.decode_launch import (
    ALONE,
    ALONE_EARLY,
    ALONE_FEW,
    ALONE_NARROW,
    ALONE_SHORT,
    GROUPED,
    GROUPED_FEW,
    GROUPED_ONCE,
    GROUPED_SHORT,
    MOST_PARTS,
    Cut,
    cut,
    launch_for,
)
from inferometer.kernels.support import Table, Tiles, look_up
from inferometer.nn.alibi import slopes as alibi
from paged_queries import CONTEXTS, SHAPES, close, exact, query_of, written


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_reference_is_the_formula(pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool) -> None:
    batch = pages.fill(CONTEXTS, kv_heads, head_size, dtype=dtype)
    query = query_of(len(CONTEXTS), heads, head_size, dtype)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = decode.paged_decode(
        query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts, page_size=16, scale=0.1, longest=150, slopes=slopes
    )
    close(got, exact(batch, query, 0.1, slopes), dtype)


@pytest.mark.parametrize("contexts", [[7], [5, 5], [0], [0, 0, 9], []])
def test_reference_of_few_and_of_no_rows(pages: Any, contexts: list[int]) -> None:
    batch = pages.fill(contexts, 2, 16)
    query = query_of(len(contexts), 4, 16, torch.float32)
    got = decode.paged_decode(
        query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts, page_size=16, scale=0.25, longest=9
    )
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_kernel_is_the_formula(
    pages: Any,
    interpreted: Callable[..., Any],
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    biased: bool,
    parts: int,
) -> None:
    batch = pages.fill(CONTEXTS, kv_heads, head_size, dtype=dtype)
    query = query_of(len(CONTEXTS), heads, head_size, dtype)
    slopes = torch.tensor(alibi(heads)) if biased else None
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=0.1,
        longest=150,
        slopes=slopes,
        tiling=Tiles(block=32, warps=4, stages=1, queries=16),
        cutting=Cut(parts, least=16),
    )
    close(got, exact(batch, query, 0.1, slopes), dtype)
    assert not got[CONTEXTS.index(0)].any()


@pytest.mark.parametrize(
    ("heads", "far"), [(2, 1000), (4, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0), (4, 1000)))]
)
def test_parts_are_joined_whoever_comes_last(pages: Any, interpreted: Callable[..., Any], heads: int, far: int) -> None:
    """Many parts of a few contexts, among them those that fill no part, one, and none at all; the result does not depend on the order."""
    contexts = [0, 1, 16, 17, 300, 31]
    batch = pages.fill(contexts, 2, 16)
    query = query_of(len(contexts), heads, 16, torch.float32)
    named = {"page_size": 16, "scale": 0.25, "longest": 300, "tiling": Tiles(block=16, warps=4, stages=1, queries=16)}
    rest = query, batch.keys, batch.values, batch.table, batch.seats, batch.contexts
    got = [interpreted(written, far, *rest, **named, cutting=Cut(parts, least=16))[0] for parts in (1, 2, 16, 32)]
    for one in got:
        close(one, exact(batch, query, 0.25), torch.float32)
    again = interpreted(written, far, *rest, **named, cutting=Cut(16, least=16))[0]
    assert torch.equal(again, got[2])


@pytest.mark.parametrize("page_size", [1, 8, 12, 64])
def test_kernel_reads_pages_of_any_size(pages: Any, interpreted: Callable[..., Any], page_size: int) -> None:
    contexts = [1, 70, 12, 13]
    batch = pages.fill(contexts, 2, 16, page_size=page_size)
    query = query_of(len(contexts), 2, 16, torch.float32)
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=page_size,
        scale=0.25,
        longest=70,
        tiling=Tiles(block=16, warps=4, stages=1),
    )
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_kernel_takes_a_view_of_a_fused_projection(pages: Any, interpreted: Callable[..., Any], kv_heads: int) -> None:
    contexts = [5, 20]
    batch = pages.fill(contexts, kv_heads, 16)
    query = query_of(2, 3 + 2 * kv_heads, 16, torch.float32)[:, :3]
    assert not query.is_contiguous()
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=0.25,
        longest=20,
    )
    assert got.is_contiguous()
    close(got, exact(batch, query, 0.25), torch.float32)


@pytest.mark.parametrize("parts", [1, 2])
def test_scores_far_from_zero_stay_finite(pages: Any, interpreted: Callable[..., Any], parts: int) -> None:
    contexts = [40, 300]
    batch = pages.fill(contexts, 2, 16)
    query = query_of(2, 2, 16, torch.float32) * 1e4
    got = interpreted(
        decode.paged_decode_triton,
        query,
        batch.keys,
        batch.values,
        batch.table,
        batch.seats,
        batch.contexts,
        page_size=16,
        scale=1.0,
        longest=300,
        cutting=Cut(parts, least=16),
    )
    close(got, exact(batch, query, 1.0), torch.float32)


class TestCut:
    """On a card of 132 processors."""

    @pytest.mark.parametrize(("programs", "longest", "members"), [(32, 1, 1), (32, 255, 1), (16, 127, 1), (8, 127, 16), (8, 1, 16)])
    def test_short_contexts_are_one_launch(self, programs: int, longest: int, members: int) -> None:
        assert cut(programs, longest, 132, members=members).parts == 1

    def test_few_heads_and_groups_are_cut_finer(self) -> None:
        """They leave most processors idle."""
        assert cut(16, 544, 132, members=1) == Cut(parts=16, least=32)
        assert cut(17, 544, 132, members=1) == Cut(parts=8, least=64)
        assert cut(32, 544, 132, members=16) == Cut(parts=16, least=32)

    def test_a_full_card_needs_one(self) -> None:
        assert cut(250 * 32, 1500, 132, members=1).parts == 1
        assert cut(256 * 8, 2048, 132, members=16).parts == 1

    @pytest.mark.parametrize("programs", [1, 4, 8, 32, 128, 512])
    def test_long_contexts_fill_the_card(self, programs: int) -> None:
        parts = cut(programs, 16_000, 132, members=1).parts
        assert programs * parts >= 264 or parts == MOST_PARTS

    def test_no_more_parts_than_there_are_keys_for(self) -> None:
        assert cut(1, 1024, 132, members=1).parts == 32

    def test_one_long_context_does_not_hold_up_a_full_card(self) -> None:
        """It is cut into many parts, but short contexts are not."""
        assert cut(256 * 32, 32_000, 132, members=1) == Cut(parts=16, least=2048)

    @pytest.mark.parametrize(
        ("programs", "parts", "longest", "members", "narrow", "table"),
        [
            (64 * 16, 1, 110, 1, False, ALONE_SHORT),
            (33 * 16, 1, 110, 1, False, ALONE_EARLY),
            (67, 2, 1000, 1, False, ALONE_EARLY),
            (66, 8, 1000, 1, False, ALONE_FEW),
            (16, 32, 2000, 1, False, ALONE_FEW),
            (34 * 16, 1, 1000, 1, False, ALONE),
            (64 * 16, 1, 513, 1, False, ALONE),
            (64 * 16, 1, 110, 1, True, ALONE_NARROW),  # the others were not measured
            (16, 32, 2000, 1, True, ALONE_NARROW),
            (512 * 8, 1, 110, 16, False, GROUPED_SHORT),
            (512 * 8, 1, 110, 32, False, GROUPED),
            (512 * 8, 1, 110, 16, True, GROUPED),
            (512 * 8, 1, 1000, 16, False, GROUPED),
            (8, 32, 32 * 64, 16, False, GROUPED_ONCE),
            (8, 32, 32 * 64 + 1, 16, False, GROUPED_FEW),
            (66, 1, 64, 16, True, GROUPED_ONCE),
            (67, 1, 64, 16, False, GROUPED),
        ],
    )
    def test_what_is_launched(self, programs: int, parts: int, longest: int, members: int, narrow: bool, table: Table) -> None:
        got = launch_for(
            programs, Cut(parts, 32), longest, 132, members=members, narrow=narrow, card=(9, 0), head_bytes=256
        )  # fmt: skip
        assert got is look_up(table, (9, 0), 256)

    def test_a_block_that_is_the_whole_part_is_as_long_as_heads_are_wide(self) -> None:
        def tiles(longest: int) -> Tiles:
            return launch_for(8, Cut(4, 32), longest, 132, members=16, narrow=False, card=(9, 0), head_bytes=512)

        assert tiles(128).stages == 1
        assert tiles(129).stages == 2

    @pytest.mark.parametrize("longest", [0, 1, 511, 512, 3000, 10**6])
    @pytest.mark.parametrize("programs", [0, 1, 3, 100, 5000])
    def test_parts_are_a_power_of_two(self, programs: int, longest: int) -> None:
        parts = cut(programs, longest, 132, members=1).parts
        assert parts & (parts - 1) == 0
        assert 1 <= parts <= MOST_PARTS
