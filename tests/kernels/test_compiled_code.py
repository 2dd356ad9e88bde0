"""What the compiler makes of kernels: which instructions, in which order, read how wide, spilling nothing. No GPU is needed for that."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch

from compiled_kernels import Card, linear, mailbox, pages, resources, shared_rows
from inferometer.kernels import (
    eight_bit_matmul,
    gate,
    invariant_attention,
    invariant_linear,
    norm,
    paged_decode,
    quant_launch,
    quant_linear,
    rank_rows,
    rank_sum,
    rotary_write,
    rounded_rows,
    token_choice,
)
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.token_rows import Places
from quant_cases import FORMATS, drawn_weight

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")
BESIDE_A_PRODUCT = 65536 // 4
"""Registers of a program: of a processor's, what the programs of a product leave."""


def registers(built: Any) -> int:
    """That a program may have at most."""
    return int(built.metadata.maxnreg) * 32 * int(built.metadata.num_warps)


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
def test_words_that_go_in_pairs_are_read_and_written_16_bytes_at_a_time(card: Card) -> None:
    x = torch.zeros(3, 4096, dtype=torch.bfloat16)
    for launch in (
        lambda: rank_sum.rank_sum_norm(x, x.clone(), norm.NormWeights("layer", 1e-5, x[0], x[0]), mailbox(4), paired=True),
        lambda: rank_sum.rank_sum(x, mailbox(4), paired=True),
        lambda: rank_sum.rank_sum_add(x[0, :1024], x[1, :1024], mailbox(4), paired=True),
    ):
        launch()
        lines = card.built[-1].asm["ptx"].split("griddepcontrol.wait")[1].splitlines()
        assert sum("st.relaxed.sys.global.v2.b64" in line for line in lines) == 4  # a pair a thread, to four ranks
        assert sum("ld.volatile.global.v2.b64" in line for line in lines) == 8  # from four ranks, and again
        assert not any("sys.global.b64" in line or "volatile.global.b64" in line for line in lines)
        assert "STACK:0" in resources(card.built[-1].asm["cubin"])


@pytest.mark.parametrize("card", [90], indirect=True)
def test_rows_that_go_around_are_vectors_signalled_by_one_thread_of_programs_of_which_two_fit(card: Card) -> None:
    x = torch.zeros(32, 4096, dtype=torch.bfloat16)
    rank_rows.rank_rows(x, shared_rows(4), 0, x.clone(), norm.NormWeights("layer", 1e-5, x[0], x[0]), around=True)
    card.check(kernels=1)
    lines = card.built[0].asm["ptx"].splitlines()
    assert sum("st.global.v4.b32" in line for line in lines) == 3 + 2 + 3  # parts, residual and result, results
    assert not any("st.global.b16" in line or "st.global.v2.b32" in line for line in lines)
    assert sum("@p fence.acq_rel.sys;" in line for line in lines) == sum("fence" in line for line in lines) == 4
    assert sum("@p st.relaxed.sys.global.u32" in line for line in lines) == 2 * 3
    used = resources(card.built[0].asm["cubin"])
    assert "STACK:0" in used
    assert int(re.findall(r"REG:(\d+)", used)[-1]) <= 64


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize(("name", "types"), [("int8", "s32.s8.s8"), ("fp8", "f32.e4m3.e4m3")])
def test_bytes_are_multiplied_as_they_lie(card: Card, name: str, types: str) -> None:
    """Every launch of the table, by Hopper's matrix instructions for bytes and no other, and nothing spilled."""
    weight, x = drawn_weight(512, 1024, **FORMATS[name]), torch.zeros(16, 1024, dtype=torch.bfloat16)
    tables = (quant_launch.BYTES, False), (quant_launch.READIED_BYTES if name == "int8" else (), True)
    launches = [(*sizes, readied) for table, readied in tables for sizes in table]
    for outputs, block, warps, stages, programs, readied in launches:
        launch = Tiling(outputs, block, warps, stages, programs, early=True, in_bytes=True, readied=readied)
        quant_linear.quant_linear_triton(x, weight, x[0, :512], activation="relu", launch=launch)
    products = [built for built in card.built if built.metadata.name == "quant_bytes_product"]
    assert len(products) == len(launches)
    for built in products:
        assert set(re.findall(r"wgmma\.mma_async\S*k32\.(\S+)", built.asm["ptx"])) == {types}
        assert "mma.sync.aligned.m16" not in built.asm["ptx"]
        assert "STACK:0" in resources(built.asm["cubin"])


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("name", ["int4 g64", "int4 g64 symmetric"])
def test_nibbles_are_multiplied_where_they_were_read(card: Card, name: str) -> None:
    """As whole numbers: nothing is scaled before it is multiplied, nothing but what was copied from memory goes through shared memory, no
    scale is read by itself, and nothing is spilled."""
    weight, x = drawn_weight(512, 4096, **FORMATS[name]), torch.zeros(16, 4096, dtype=torch.bfloat16)
    launches = [launch for launch in quant_candidates(16, weight) if launch.readied]
    for launch in launches:
        quant_linear.quant_linear_triton(x, weight, x[0, :512], activation="relu", launch=launch)
    products = [built for built in card.built if built.metadata.name == "quant_groups_product"]
    assert len(products) == len(launches) > 0
    for built in products:
        assert "wgmma" in built.asm["ptx"]
        assert "fma.rn.bf16x2" not in built.asm["ptx"]
        assert not re.search(r"ttg\.local_alloc %|ttg\.local_store", built.asm["ttgir"])
        assert "ld.global.b16" not in built.asm["ptx"].split("griddepcontrol.wait")[1].split("wgmma.mma_async")[0]
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
    # Of one block of 32 keys and values 16 bytes a thread, eight times each; heads of the sweep come in two bytes a thread, behind.
    assert sum("ld.global" in line and ".v4.b32" in line for line in before) == 16
    assert not any("ld.global.b16" in line for line in before)
    assert any("ld.global.b16" in line for line in behind)
    assert any("st.global" in line for line in behind)
    assert registers(card.built[0]) == BESIDE_A_PRODUCT


@pytest.mark.parametrize("card", [90], indirect=True)
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("heads", [4, 60])
def test_attention_that_fetches_ahead_keeps_in_its_registers(card: Card, heads: int, head_size: int) -> None:
    """It is bounded to what is left beside a product, and nothing goes to memory for that."""
    rows = torch.zeros(2, 3 * heads, head_size, dtype=torch.bfloat16)
    fresh, slopes = paged_decode.Fresh(rows[:, heads : 2 * heads], rows[:, 2 * heads :]), torch.zeros(heads)
    for longest in (100, 1000):
        named = {"page_size": 16, "scale": 0.1, "longest": longest, "slopes": slopes, "fresh": fresh}
        paged_decode.paged_decode_triton(rows[:, :heads], **pages(heads, head_size, torch.bfloat16), **named)
    for built in card.built:
        assert built.metadata.num_warps == (2 if heads == 4 else 4)
        assert registers(built) == BESIDE_A_PRODUCT
        assert "STACK:0" in resources(built.asm["cubin"])


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
    linear(card, rows, 2048, 8192, torch.bfloat16, biased=False)  # a bias is loaded before: no kernel writes it
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
    norm.norm_triton(x, x.clone(), kind="layer", epsilon=1e-5, weight=None, bias=None)  # which are loaded before: no kernel writes them
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
    card.whole = False
    for launch in launches:
        quant_linear.quant_linear_triton(x, weight, launch=launch)
    assert len(card.layouts) == len(launches) > 0
    for code in card.layouts:
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
    card.whole = False
    quant_linear.quant_linear_triton(x, weight, launch=quant_candidates(rows, weight)[0])
    (code,) = card.layouts
    assert "ttg.async_copy_global_to_local" in code
    assert not re.search(r"ttg\.local_alloc %|ttg\.local_store", code)
