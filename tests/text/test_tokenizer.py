"""The tokenizer that wraps one of the tokenizers library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer as Backend

from inferometer.errors import UserError
from inferometer.text.tokenizer import LibraryTokenizer


def test_names_and_ids(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("sentencepiece"), special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, chat_template="T")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.chat_template) == (1, (2,), "T")
    assert [tokenizer.is_special(i) for i in (0, 1, 2, 3)] == [True, True, True, False]
    assert tokenizer.token(3) == "<0x00>"
    assert tokenizer.token(tokenizer.vocabulary_size) is None


def test_without_names(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("byte-level"))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, ())


def test_ends_that_are_given_replace_its_own(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("byte-level"), special_tokens={"eos_token": "</s>"}, eos_token_ids=[5, 6])
    assert tokenizer.eos_token_ids == (5, 6)


def test_empty_text(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("sentencepiece"))
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("", special=False) == []
    assert tokenizer.decode([]) == ""


def test_lone_surrogate(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("byte-level"))
    with pytest.raises(UserError, match=r"lone surrogate, U\+DCFF, at character 1") as caught:
        tokenizer.encode("a\udcff")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece", "word-piece"])
def test_very_long_text(name: str, build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build(name))
    text = "the quick brown fox " * 20_000
    ids = tokenizer.encode(text, special=False)
    assert tokenizer.decode(ids).rstrip() == text.rstrip()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    modules = ("load", "folder", "gguf", "chat", "detokenise", "stop", "bytes")
    code = (
        f"import sys; {'; '.join(f'import inferometer.text.{m}' for m in modules)}; "
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'jinja2', 'gguf'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
