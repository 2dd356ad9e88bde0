"""Tokenizers out of GGUF metadata."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from gguf_tokenizers import CONTROL, NORMAL, byte_level, llama_fields, pieces_vocabulary, with_added
from inferometer.text.byte_level import token_bytes
from inferometer.text.load import load_tokenizer
from inferometer.text.tokenizer import Tokenizer

Written = Callable[..., Path]


def loaded(path: Path) -> Tokenizer:
    tokenizer = load_tokenizer(path)
    assert tokenizer is not None
    return tokenizer


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text of each token."""
    return [token_bytes(tokenizer.token(i) or "").decode() for i in tokenizer.encode(text, special=False)]


SPLITS = [
    # What llama.cpp's definition of each pre-tokenizer does to texts on which they differ.
    ("smollm", "x  12", ["x", "  ", "1", "2"]),
    ("smollm", "\n\n3.", ["\n\n", "3", "."]),
    ("smollm", " 12", [" ", "1", "2"]),
    ("smollm", "٣٤", ["٣", "٤"]),
    ("starcoder", "x  12", ["x", "  ", "1", "2"]),
    ("starcoder", "1234", ["1", "2", "3", "4"]),
    ("gpt-2", "x  12", ["x", " ", " 12"]),
    ("gpt-2", "\n\n3.", ["\n", "\n", "3", "."]),
    ("gpt-2", "1234", ["1234"]),
    ("gpt-2", "abc's", ["abc", "'s"]),
    ("gpt-2", "!abc", ["!", "abc"]),
    ("gpt-2", " ..", [" .."]),
    ("llama-bpe", "1234", ["123", "4"]),
    ("llama-bpe", "x  12", ["x", " ", " ", "12"]),
    ("llama-bpe", "!abc", ["!abc"]),
    ("llama-bpe", "abc'S", ["abc", "'S"]),
    ("llama-bpe", "x.\n", ["x", ".\n"]),
    ("llama-bpe", " \n", [" \n"]),
    ("default", "1234", ["123", "4"]),
    ("default", " 12", [" ", "12"]),
    ("default", " ..", [" ", ".."]),
    ("default", "=12", ["=", "12"]),
    ("default", "+1", ["+", "1"]),
    ("default", "x  12", ["x", " ", " ", "12"]),
    ("default", "«»", ["«»"]),
    ("default", "٣٤", ["٣٤"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), SPLITS)
def test_pre_tokenizers(pre: str, text: str, pieces: list[str], written: Written) -> None:
    assert cut(loaded(written(**byte_level(text, pre=pre))), text) == pieces


def test_without_pre_it_is_the_default(written: Written) -> None:
    assert cut(loaded(written(**byte_level("=1234"))), "=1234") == ["=", "123", "4"]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "smollm", "starcoder"])
def test_every_text_comes_back(pre: str, written: Written) -> None:
    tokenizer = loaded(written(**byte_level("abc 12", pre=pre)))

    @settings(max_examples=100, deadline=None)
    @given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("abc 12\n'st=.٣")), max_size=30))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_equals_the_trained_tokenizer(build: Callable[[str], Backend], written: Written, texts: list[str]) -> None:
    backend = build("digits")
    vocab = sorted(backend.get_vocab(), key=lambda token: backend.get_vocab()[token])
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    types = [CONTROL, *[NORMAL] * (len(vocab) - 1)]
    tokenizer = loaded(written(model="gpt2", pre="smollm", tokens=vocab, merges=merges, token_type=types, eos_token_id=0))
    for text in texts:
        ids = backend.encode(text).ids
        assert tokenizer.encode(text) == ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special=skip) == backend.decode(ids, skip_special_tokens=skip)


def test_whole_words_first_is_llamas_alone(written: Written) -> None:
    # "abc" is a token that no merge makes.
    fields = byte_level("xy")
    fields["tokens"].append("abc")
    fields["token_type"].append(NORMAL)
    assert cut(loaded(written(pre="llama-bpe", **fields)), "abc") == ["abc"]
    assert cut(loaded(written(pre="gpt-2", **fields)), "abc") == ["a", "b", "c"]


def test_kinds_of_tokens(written: Written) -> None:
    fields = with_added(pre="gpt-2", chat_template="{{ messages }}")
    end = fields["tokens"].index("<|endoftext|>")
    tokenizer = loaded(
        written(**fields, bos_token_id=end, eos_token_id=end + 1, unknown_token_id=end, padding_token_id=end + 1, eot_token_id=end)
    )
    ids = tokenizer.encode("x<|im_end|>x<tool>x    x")
    assert [i for i in ids if i >= end] == [end + 1, end + 2, end + 3]
    assert tokenizer.decode(ids) == "xx<tool>x    x"
    assert tokenizer.decode(ids, skip_special=False) == "x<|im_end|>x<tool>x    x"
    assert [tokenizer.is_special(end + i) for i in range(4)] == [True, True, False, False]
    assert tokenizer.bos_token_id == end
    assert tokenizer.eos_token_ids == (end + 1, end)
    assert tokenizer.special_tokens == {
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>",
    }  # fmt: skip
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.vocabulary_size == len(fields["tokens"])


@pytest.mark.parametrize(
    ("pre", "flags", "around"),
    [
        ("gpt-2", {}, (0, 0)),
        ("gpt-2", {"add_bos_token": True}, (1, 0)),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (1, 1)),
        ("gpt-2", {"add_eos_token": True}, (0, 1)),
        ("llama-bpe", {}, (1, 0)),
        ("llama-bpe", {"add_bos_token": False}, (0, 0)),
    ],
)
def test_what_goes_around_a_text(pre: str, flags: dict[str, bool], around: tuple[int, int], written: Written) -> None:
    fields = with_added(pre=pre)
    bos, eos = fields["tokens"].index("<|endoftext|>"), fields["tokens"].index("<|im_end|>")
    tokenizer = loaded(written(**fields, bos_token_id=bos, eos_token_id=eos, **flags))
    plain = tokenizer.encode("abc", special=False)
    assert tokenizer.encode("abc") == [bos] * around[0] + plain + [eos] * around[1]


def sentencepiece_reference(text: str) -> list[int]:
    """SentencePiece's BPE by its definition: join the neighbours whose piece scores best, the leftmost of equals, until none is left."""
    tokens, scores, _ = pieces_vocabulary()
    ids = {token: i for i, token in enumerate(tokens)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        joins = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not joins:
            break
        _, i = heapq.nsmallest(1, joins)[0]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return [i for symbol in symbols for i in ([ids[symbol]] if symbol in ids else [3 + b for b in symbol.encode()])]


def test_sentencepiece_equals_its_definition(written: Written) -> None:
    tokenizer = loaded(written(**llama_fields()))

    @settings(max_examples=300, deadline=None)
    @given(st.text(st.sampled_from("hello world é🎉\n"), max_size=30))
    def check(text: str) -> None:
        assert tokenizer.encode(text, special=False) == (sentencepiece_reference(f" {text}") if text else [])
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_sentencepiece_details(written: Written) -> None:
    tokenizer = loaded(written(**llama_fields()))
    assert tokenizer.encode("hello") == [1, tokenizer.encode("hello", special=False)[0]]
    # What follows a special token gets a space in front too.
    assert tokenizer.encode("hello</s>hello", special=False) == [tokenizer.encode("hello")[1], 2, tokenizer.encode("hello")[1]]
    assert tokenizer.encode("") == [1]
    assert tokenizer.decode([1, 3 + 0xF0, 3 + 0x9F]) == "\ufffd\ufffd"


def test_sentencepiece_options(written: Written) -> None:
    tokenizer = loaded(written(**llama_fields(add_bos_token=False, add_eos_token=True, add_space_prefix=False)))
    assert tokenizer.encode("he ") == [*sentencepiece_reference("he "), 2]
    assert tokenizer.decode(tokenizer.encode(" he")) == " he"


def test_word_piece(written: Written) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, "▁the", "▁quick", "ly", "▁cafe", "▁,", "▁中", "[unused7]"]
    types = [CONTROL] * 5 + [NORMAL] * 7
    ids = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0, "mask_token_id": 4}
    tokenizer = loaded(written(model="bert", pre="anything", tokens=tokens, token_type=types, **ids))
    assert tokenizer.encode("The quickly, Café 中zzz") == [2, 5, 6, 7, 9, 8, 10, 1, 3]
    assert tokenizer.encode("", special=False) == []
    assert [tokenizer.token(i) for i in (5, 7, 11)] == ["the", "##ly", "[unused7]"]
    assert tokenizer.decode([2, 5, 6, 7, 9, 3]) == "the quickly,"
    cased = loaded(written(model="bert", tokens=tokens, token_type=types, normalizer__lowercase=False, **ids))
    assert cased.encode("The the", special=False) == [1, 5]


def test_no_vocabulary(written: Written) -> None:
    assert load_tokenizer(written(model="none")) is None
    assert load_tokenizer(written(chat_template="x")) is None
