"""The byte tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from inferometer.errors import UserError
from inferometer.text.byte_level import BYTE_TO_CHARACTER
from inferometer.text.load import load_tokenizer


@given(st.text())
def test_bytes_there_and_back(text: str) -> None:
    tokenizer = load_tokenizer("byte")
    assert tokenizer is not None
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_it_is() -> None:
    tokenizer = load_tokenizer("byte")
    assert tokenizer is not None
    assert (tokenizer.vocabulary_size, tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.chat_template) == (256, None, (), None)
    assert not any(tokenizer.is_special(i) for i in range(256))


def test_ids_that_are_no_byte_decode_to_one_replacement_each() -> None:
    tokenizer = load_tokenizer("byte")
    assert tokenizer is not None
    assert tokenizer.decode([97, 256, 50_000, 98]) == "a\ufffd\ufffdb"
    assert tokenizer.decode([0xC3, 300, 0xA9]) == "\ufffd\ufffd\ufffd"


def test_text_that_is_not_unicode() -> None:
    tokenizer = load_tokenizer("byte")
    assert tokenizer is not None
    with pytest.raises(UserError, match=r"U\+D800, at character 2"):
        tokenizer.encode("ab\ud800")


def test_alphabet_is_the_librarys() -> None:
    assert sorted(BYTE_TO_CHARACTER) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert [BYTE_TO_CHARACTER[b] for b in (0x20, 0x41, 0x0A, 0xAD)] == ["Ġ", "A", "Ċ", "Ń"]
