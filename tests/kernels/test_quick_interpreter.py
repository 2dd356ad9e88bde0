"""What Triton's interpreter gives without what it does in vain is what it gives as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch

import forked
from inferometer.kernels.decode_launch import Cut
from inferometer.kernels.quant_linear import quant_linear_triton
from inferometer.kernels.support import Tiles
from paged_queries import query_of, written
from quant_cases import FORMATS, drawn_weight
from quant_products import READIED, fenced


def begin_plainly() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


@pytest.mark.slow  # every other test of a kernel would fail if results were others; this one says why
def test_every_bit_stays(interpreted: Callable[..., Any], pages: Any) -> None:
    weight, x = drawn_weight(21, 352, **FORMATS["int4 g64"]), fenced(6, 352, torch.bfloat16, 2)
    contexts = [1, 17, 50]
    batch = pages.fill(contexts, 2, 16, dtype=torch.float16)
    query = query_of(len(contexts), 4, 16, torch.float16)
    rest = batch.table, batch.seats, batch.contexts
    tiling, cutting = Tiles(block=32, warps=4, stages=1, queries=16), Cut(4, least=16)
    asked: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (quant_linear_triton, (x, weight), {"launch": READIED["int4 g64"]}),
        (
            written,
            (0, query, batch.keys, batch.values, *rest),
            {"page_size": 16, "scale": 0.1, "slopes": None, "longest": 50, "fresh": None, "tiling": tiling, "cutting": cutting},
        ),
    ]
    with ProcessPoolExecutor(1, mp_context=forked.context(), initializer=begin_plainly) as plain:
        for function, arguments, named in asked:
            found, wanted = interpreted(function, *arguments, **named), plain.submit(function, *arguments, **named).result()
            for ours, theirs in zip(tensors(found), tensors(wanted), strict=True):
                assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def tensors(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
