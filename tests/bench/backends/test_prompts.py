from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.backends.prompts import FILLER, random_prompts, text_prompts
from inferometer.errors import UserError
from inferometer.text.bytes import ByteTokenizer


@given(st.integers(1, 40), st.integers(1, 2000))
def test_rows_have_exactly_the_length_and_wrap_around(batch_size: int, length: int) -> None:
    rows = text_prompts(ByteTokenizer(), batch_size, length, 256)
    assert [len(row) for row in rows] == [length] * batch_size
    text = (FILLER * (length // len(FILLER) + 2)).encode()
    assert all(bytes(row) in text for row in rows)


def test_rows_differ_and_are_the_same_every_time() -> None:
    rows = text_prompts(ByteTokenizer(), 16, 64, 256)
    assert len({tuple(row) for row in rows}) == 16
    assert rows == text_prompts(ByteTokenizer(), 16, 64, 256)


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(UserError, match=r"--tokenizer .* vocabulary of 64"):
        text_prompts(ByteTokenizer(), 1, 8, 64)


@given(st.integers(0, 2**64 - 1), st.integers(1, 8), st.integers(1, 50), st.integers(1, 1000))
def test_random_rows_stay_in_the_vocabulary(seed: int, batch_size: int, length: int, vocabulary: int) -> None:
    rows = random_prompts(seed, batch_size, length, vocabulary)
    assert [len(row) for row in rows] == [length] * batch_size
    assert all(0 <= token < vocabulary for row in rows for token in row)
    # A row is its own: more of them change none.
    assert random_prompts(seed, batch_size + 1, length, vocabulary)[:batch_size] == rows


def test_seeds_and_rows_differ() -> None:
    rows = random_prompts(0, 2, 20, 1000) + random_prompts(1, 2, 20, 1000)
    assert len({tuple(row) for row in rows}) == 4


@pytest.mark.parametrize("batch_size", [10**10, 10**22])
def test_prompts_beyond_the_hosts_memory_are_refused_before_it_is_filled(batch_size: int) -> None:
    for make in (lambda: random_prompts(0, batch_size, 10, 256), lambda: text_prompts(ByteTokenizer(), batch_size, 10, 256)):
        with pytest.raises(MemoryError, match=f"{batch_size} x 10 token ids need .* GiB of host memory"):
            make()
