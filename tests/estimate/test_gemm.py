"""Matrix products: their limits, and that more work never takes less time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate.gemm import AMPERE, HOPPER, Library, library, overlapped, product

RATE, BYTES, UNITS = 2.7e14, 1.6e12, 108
SIZES = st.integers(1, 6000)


def _seconds(m: int, n: int, k: int, *, rate: float = RATE, speed: float = BYTES, kernels: Library = AMPERE, groups: int = 1) -> float:
    memory = 2 * groups * (m * k + n * k + m * n) / speed
    found = product(m, n, k, flop_s=rate, bytes_s=speed, memory_s=memory, multiprocessors=UNITS, kernels=kernels, groups=groups)
    return overlapped(found.tensor_s, memory + found.partial_bytes / speed) + found.extra_s


def test_a_large_product_runs_at_the_rate() -> None:
    assert 2 * 8192**3 / _seconds(8192, 8192, 8192) == pytest.approx(RATE, rel=0.06)


def test_one_row_takes_what_reading_the_matrix_takes() -> None:
    assert pytest.approx(_seconds(1, 16384, 4096), rel=0.05) == 2 * 4096 * 16384 / BYTES


def test_few_rows_cost_hardly_more_than_one() -> None:
    assert _seconds(16, 16384, 4096) < 1.1 * _seconds(1, 16384, 4096)


def test_a_product_smaller_than_the_device_does_not_fill_it() -> None:
    # 64 tiles of the largest kind on 108 multiprocessors.
    assert 2 * 1024 * 1024 * 1024 / _seconds(1024, 1024, 1024) < 0.75 * RATE


def test_products_side_by_side_fill_it_together() -> None:
    assert _seconds(256, 1024, 1024, groups=8) < 8 * _seconds(256, 1024, 1024)


@settings(max_examples=80, deadline=None)
@given(SIZES, SIZES, SIZES, st.integers(1, 500), st.sampled_from((AMPERE, HOPPER)))
def test_more_work_or_a_slower_device_never_takes_less(m: int, n: int, k: int, more: int, kernels: Library) -> None:
    least = _seconds(m, n, k, kernels=kernels)
    for larger in ((m + more, n, k), (m, n + more, k)):
        assert _seconds(*larger, kernels=kernels) >= least * (1 - 1e-9)
    assert _seconds(m, n, k, rate=RATE / 2, kernels=kernels) >= least
    assert _seconds(m, n, k, speed=BYTES / 2, kernels=kernels) >= least
    assert least >= max(2 * m * n * k / RATE / 1.02, 2 * n * k / BYTES)


def test_newer_libraries_lose_less_to_small_tiles_and_short_sums() -> None:
    for m, n, k in ((400, 4096, 4096), (1024, 2048, 2048), (8192, 4096, 4096)):
        assert _seconds(m, n, k, kernels=HOPPER) < _seconds(m, n, k)
    assert _seconds(1, 16384, 4096, kernels=HOPPER) == pytest.approx(_seconds(1, 16384, 4096), rel=0.02)


def test_which_library_makes_a_product() -> None:
    assert library("9.0", "bfloat16") is HOPPER
    assert library("9.0", "float32") is library("8.0", "bfloat16") is library(None, "float16") is AMPERE


def test_two_kinds_of_work_overlap() -> None:
    assert overlapped(1.0, 0.0) == 1.0
    assert 1.0 < overlapped(1.0, 1.0) < 1.5
    assert overlapped(1.0, 0.1) == pytest.approx(1.0, rel=0.01)
