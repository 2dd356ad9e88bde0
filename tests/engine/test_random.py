"""Counter-based random numbers: known answers, and independence of everything but seed and position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.random import philox, signed, uniform

# Random123 1.14, tests/kat_vectors, rows "philox4x32 10": counter, key, expected.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def column(text: str) -> torch.Tensor:
    return torch.tensor(words(text), dtype=torch.int64)[:, None]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_one_by_one(counter: str, key: str, expected: str) -> None:
    assert philox(column(counter), column(key))[:, 0].tolist() == words(expected)


def test_known_answers_together() -> None:
    counters, keys, expected = (torch.cat([column(row[i]) for row in KNOWN_ANSWERS], dim=1) for i in range(3))
    assert torch.equal(philox(counters, keys), expected)


def test_a_uniform_is_made_of_the_first_two_words() -> None:
    first, second, *_ = words(KNOWN_ANSWERS[0][2])
    expected = ((first >> 5) * 2**26 + (second >> 6)) / 2**53
    assert uniform(torch.tensor([0]), torch.tensor([0])).tolist() == [expected]


def reference(seed: int, position: int) -> float:
    """Philox in Python's own whole numbers."""
    mask = 2**32 - 1
    c, k = [position & mask, position >> 32, 0, 0], [seed & mask, seed >> 32]
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(right >> 32) ^ c[1] ^ k[0], right & mask, (left >> 32) ^ c[3] ^ k[1], left & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return ((c[0] >> 5) * 2**26 + (c[1] >> 6)) / 2**53


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=20))
def test_a_batch_equals_the_reference_number_by_number(pairs: list[tuple[int, int]]) -> None:
    seeds = torch.tensor([signed(seed) for seed, _ in pairs])
    positions = torch.tensor([position for _, position in pairs])
    assert uniform(seeds, positions).tolist() == [reference(*pair) for pair in pairs]


def test_seeds_and_positions_broadcast() -> None:
    seeds, positions = torch.tensor([[3], [signed(2**64 - 1)]]), torch.arange(4)
    assert uniform(seeds, positions).tolist() == [[reference(seed, p) for p in range(4)] for seed in (3, 2**64 - 1)]


def test_the_numbers_are_uniform_and_differ() -> None:
    numbers = uniform(torch.arange(200)[:, None], torch.arange(100)).flatten()
    assert numbers.dtype == torch.float64
    assert 0 <= numbers.min() < numbers.max() < 1
    assert len(numbers.unique()) == len(numbers)
    counts = torch.histc(numbers, bins=50, min=0, max=1)
    chi_square = ((counts - 400) ** 2 / 400).sum().item()
    assert 20 < chi_square < 90  # 49 degrees of freedom: outside this with a chance below 1 in 2000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits() -> None:
    seeds, positions = torch.randint(-(2**62), 2**62, (1000,)), torch.arange(1000) * 2**40
    assert torch.equal(uniform(seeds, positions), uniform(seeds.cuda(), positions.cuda()).cpu())
