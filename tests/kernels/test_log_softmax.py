"""Log-probabilities: the kernel against torch, and rows of odd vocabularies in any place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferometer.kernels.cancelling import same_bits
from inferometer.kernels.log_softmax import log_softmax, log_softmax_triton, softmax

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("vocabulary", [1, 48, 301, 40_001])
def test_kernel_is_torch(interpreted: Callable[..., Any], vocabulary: int) -> None:
    scores = torch.randn(3, vocabulary) * 10
    scores[1, 1:] = -torch.inf
    got = interpreted(log_softmax_triton, scores)
    torch.testing.assert_close(got, scores.double().log_softmax(-1).float(), atol=1e-5, rtol=1e-6)


def test_a_row_without_a_finite_score_is_nan(interpreted: Callable[..., Any]) -> None:
    for score in (-torch.inf, torch.nan, torch.inf):
        got = interpreted(log_softmax_triton, torch.full((2, 7), score))
        assert got.isnan().all()
        assert log_softmax(torch.full((2, 7), score)).isnan().all()


def test_no_rows(interpreted: Callable[..., Any]) -> None:
    assert interpreted(log_softmax_triton, torch.zeros(0, 9)).shape == (0, 9)


@pytest.mark.parametrize("vocabulary", [48, 50, 301, 1000, 50257])
def test_rows_have_the_same_bits_in_any_place_on_the_cpu(vocabulary: int) -> None:
    row = torch.randn(vocabulary) * 5
    alone = log_softmax(row[None])
    for rows in (2, 3, 17, 128):
        assert same_bits(log_softmax(row.expand(rows, -1).contiguous()), alone)
        assert same_bits(softmax(row.expand(rows, -1).contiguous()), softmax(row[None]))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("vocabulary", [48, 50, 300, 301, 1000, 32000, 50257, 50258, 50272, 250880])
def test_gpu_rows_have_the_same_bits_in_any_place(vocabulary: int) -> None:
    row = torch.randn(vocabulary, device="cuda") * 5
    alone = log_softmax(row[None])
    torch.testing.assert_close(alone.cpu().double(), row.cpu().double().log_softmax(-1)[None], atol=1e-4, rtol=1e-6)
    for rows in (2, 3, 17, 128):
        assert same_bits(log_softmax(row.expand(rows, -1).contiguous()), alone)
        assert same_bits(softmax(row.expand(rows, -1).contiguous()), softmax(row[None]))
    torch.testing.assert_close(softmax(row[None]).cpu().double(), row.cpu().double().softmax(-1)[None], atol=1e-6, rtol=1e-4)
