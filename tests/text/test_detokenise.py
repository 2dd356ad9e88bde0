"""Pieces of text out of tokens: they concatenate to the whole, and nothing given out is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from inferometer.text.bytes import ByteTokenizer
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.tokenizer import LibraryTokenizer, Tokenizer

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" ▁.'?!,n'té中🎉👩\u200d<>0xE29FFF|im_end\n")), max_size=40)


def pieces(tokenizer: Tokenizer, ids: Sequence[int], skip_special: bool = True) -> list[str]:
    detokeniser = IncrementalDetokeniser(tokenizer, skip_special)
    return [*(detokeniser.push(i) for i in ids), detokeniser.finish()]


def assert_whole(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    for skip_special in (True, False):
        whole = tokenizer.decode(ids, skip_special=skip_special)
        given_out = ""
        for piece in pieces(tokenizer, ids, skip_special):
            given_out += piece
            assert whole.startswith(given_out)
        assert given_out == whole


@SETTINGS
@given(data=st.data())
def test_any_ids(any_backend: Backend, data: st.DataObject) -> None:
    tokenizer = LibraryTokenizer(any_backend)
    # Ids past the vocabulary too: a model's head may be wider than its tokenizer.
    assert_whole(tokenizer, data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size + 2), max_size=30)))


@SETTINGS
@given(text=TEXT)
def test_any_text(any_backend: Backend, text: str) -> None:
    tokenizer = LibraryTokenizer(any_backend)
    assert_whole(tokenizer, tokenizer.encode(text))


@SETTINGS
@given(data=st.data())
def test_byte_runs(build: Callable[[str], Backend], data: st.DataObject) -> None:
    # Mostly byte tokens, of whole and of broken characters.
    tokenizer = LibraryTokenizer(build("sentencepiece"))
    broken = st.lists(st.integers(3, 258), max_size=4)
    whole = st.characters(codec="utf-8").map(lambda c: [3 + b for b in c.encode()])
    other = st.integers(0, tokenizer.vocabulary_size - 1).map(lambda i: [i])
    chunks = data.draw(st.lists(st.one_of(broken, whole, other), max_size=10))
    assert_whole(tokenizer, [i for chunk in chunks for i in chunk])


@SETTINGS
@given(ids=st.lists(st.one_of(st.integers(0, 300), st.sampled_from("é中🎉".encode())), max_size=40))
def test_bytes(ids: list[int]) -> None:
    assert_whole(ByteTokenizer(), ids)


@pytest.mark.parametrize("decoder", [decoders.BPEDecoder(), decoders.Sequence([decoders.Replace("o", "oo"), decoders.Strip(" ", 1, 1)])])
def test_decoder_without_a_stage_of_its_own(decoder: decoders.Decoder, build: Callable[[str], Backend]) -> None:
    backend = build("word-level")
    backend.decoder = decoder
    tokenizer = LibraryTokenizer(backend)
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog")
    assert_whole(tokenizer, ids)
    assert pieces(tokenizer, ids)[3] != ""


def test_a_character_comes_when_it_is_whole() -> None:
    assert pieces(ByteTokenizer(), list("aé🎉".encode())) == ["a", "", "é", "", "", "", "🎉", ""]


def test_half_a_character_at_the_end_comes_at_the_end() -> None:
    assert pieces(ByteTokenizer(), list("🎉".encode()[:3])) == ["", "", "", "\ufffd"]


def test_a_bad_byte_does_not_wait() -> None:
    assert pieces(ByteTokenizer(), [0xFF, 0x61, 999]) == ["\ufffd", "a", "\ufffd", ""]


def test_leading_space_of_sentencepiece_is_taken_once(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("sentencepiece"))
    the = tokenizer.encode("the", special=False)
    assert tokenizer.decode(the * 2) == "the the"
    assert pieces(tokenizer, [1, *the, *the]) == ["", "the", " the", ""]


def test_special_tokens_only_where_asked_for(build: Callable[[str], Backend]) -> None:
    tokenizer = LibraryTokenizer(build("byte-level"))
    ids = [0, *tokenizer.encode("a", special=False), 1]
    assert pieces(tokenizer, ids) == ["", "a", "", ""]
    assert pieces(tokenizer, ids, skip_special=False) == ["<s>", "a", "</s>", ""]


def test_nothing_is_decoded_twice(build: Callable[[str], Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = LibraryTokenizer(build("sentencepiece"))
    ids = tokenizer.encode("the quick dog over 🎉 ", special=False) * 50
    whole = tokenizer.decode(ids)
    looked_up: list[int] = []

    def token(token_id: int) -> str | None:
        looked_up.append(token_id)
        return LibraryTokenizer.token(tokenizer, token_id)

    monkeypatch.setattr(tokenizer, "token", token)
    monkeypatch.setattr(tokenizer, "decode", lambda *_, **__: pytest.fail("decoded anew"))
    assert "".join(pieces(tokenizer, ids)) == whole
    assert looked_up == ids
