"""What tokens stand for by themselves: put together, they are the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from inferometer.text.bytes import ByteTokenizer
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.token_bytes import TokenBytes
from inferometer.text.tokenizer import LibraryTokenizer


def sentencepiece() -> LibraryTokenizer:
    """As Llama's: spaces are written as a sign of their own, and bytes that no token has as <0x..>."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<s>", *bytes_, "▁", "a", "b", "▁a"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return LibraryTokenizer(backend, special_tokens={"bos_token": "<s>"})


@given(st.text(st.sampled_from(" abé👋漢\n"), min_size=1))
def test_bytes_of_a_text_are_the_text(text: str) -> None:
    own = ByteTokenizer()
    table = TokenBytes(own)
    assert b"".join(table[token_id] for token_id in own.encode(text)).decode() == text
    pieces = sentencepiece()
    table = TokenBytes(pieces)
    # The space that is put before a text is part of the first token, and of no text.
    assert b"".join(table[token_id] for token_id in pieces.encode(text)).decode() == " " + text


@given(st.lists(st.integers(2, 260), min_size=1))
def test_bytes_of_any_tokens_are_what_is_streamed(ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    table, stream = TokenBytes(tokenizer), IncrementalDetokeniser(tokenizer)
    text = "".join([*map(stream.push, ids), stream.finish()])
    assert b"".join(table[token_id] for token_id in ids).decode("utf-8", "replace") == text


def test_special_tokens_are_named_and_others_have_no_bytes() -> None:
    table = TokenBytes(sentencepiece())
    assert table[1] == b"<s>"
    assert table[2 + 0xE2] == b"\xe2"
    assert table[100_000] == b""


def test_a_tokenizer_whose_decoder_has_no_stream_is_asked_itself(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a</w>": 0, "b": 1, "?": 2}, unk_token="?"))
    backend.decoder = decoders.BPEDecoder("</w>")
    table = TokenBytes(LibraryTokenizer(backend))
    assert (table[0], table[1]) == (b"a", b"b")


@pytest.mark.parametrize("token", ["a", "é", "👋"])
def test_each_is_looked_up_once(token: str) -> None:
    table = TokenBytes(ByteTokenizer())
    first = table[token.encode()[0]]
    assert table[token.encode()[0]] is first
