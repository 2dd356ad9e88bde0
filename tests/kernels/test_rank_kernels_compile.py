"""The kernels by which ranks reach each other compile for the cards that do, and fit there. No GPU is needed for that."""

from __future__ import annotations

import os

import pytest
import torch

from compiled_kernels import Card, mailbox, shared_rows
from inferometer.kernels import norm, rank_gather, rank_rows, rank_sum
from inferometer.model.spec import NormKind

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")


class TestRanks:
    """Cards that reach each other. What is written out for each rank is alike on both: the older one has fewer sizes."""

    @pytest.mark.parametrize(
        ("card", "size", "hidden", "kind"),
        [
            (80, 8, 4096, "rms"),
            (80, 3, 7168, "layer"),
            (90, 2, 4096, "rms"),
            (90, 4, 4096, "layer"),
            (90, 8, 4096, "rms"),
            (90, 3, 7168, "layer"),
            (90, 2, 768, "layer"),
        ],
        indirect=["card"],
    )
    def test_rank_sum(self, card: Card, size: int, hidden: int, kind: NormKind) -> None:
        box, x = mailbox(size), torch.zeros(3, hidden, dtype=torch.bfloat16)
        rank_sum.rank_sum_norm(x, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None), box)
        rank_sum.rank_sum(x, box)
        rank_sum.rank_sum(torch.zeros(2, dtype=torch.float32), box)
        rank_sum.rank_sum_add(x[0, :768], x[1, :768], box)
        rank_sum.rank_sum_norm(x, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None), box, paired=True)
        rank_sum.rank_sum(x, box, paired=True)
        rank_sum.rank_sum_add(x[0, :768], x[1, :768], box, paired=True)
        card.check(kernels=7)

    @pytest.mark.parametrize(
        ("card", "size", "hidden", "kind"),
        [
            (80, 8, 4096, "rms"),
            (80, 3, 7168, "layer"),
            (90, 2, 4096, "rms"),
            (90, 4, 8192, "layer"),
            (90, 8, 4096, "rms"),
            (90, 3, 7168, "layer"),
            (90, 2, 768, "layer"),
        ],
        indirect=["card"],
    )
    def test_rank_rows(self, card: Card, size: int, hidden: int, kind: NormKind) -> None:
        shared, x = shared_rows(size), torch.zeros(3, hidden, dtype=torch.bfloat16)
        rank_rows.rank_rows(x, shared, 0, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None))
        rank_rows.rank_rows(x, shared, 1)
        rank_rows.rank_copies(x, shared, 0)
        rank_rows.rank_rows(x, shared, 0, x.clone(), norm.NormWeights(kind, 1e-5, x[0], x[0] if kind == "layer" else None), around=True)
        rank_rows.rank_rows(x, shared, 1, around=True)
        card.check(kernels=5)

    @pytest.mark.parametrize("card", [80, 90], indirect=True)
    @pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.uint8])
    def test_rank_gather(self, card: Card, dtype: torch.dtype) -> None:
        rank_gather.rank_gather(torch.zeros(3, 5, dtype=dtype), torch.zeros(3, 10, dtype=dtype), mailbox(2))
        card.check(kernels=1)
