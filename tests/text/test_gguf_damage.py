"""Tokenizers out of GGUF metadata that is damaged, or of a kind that is not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_tokenizers import byte_level, llama_fields, pieces_vocabulary, with_added, write_vocabulary
from inferometer.errors import UserError
from inferometer.text.load import load_tokenizer

Written = Callable[..., Path]

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm": (byte_level(model="rwkv"), "'rwkv'"),
    "pre-tokenizer": (byte_level(pre="qwen35"), "'qwen35'"),
    "no tokens": ({"model": "gpt2", "merges": ["a b"]}, "tokenizer.ggml.tokens"),
    "no merges": ({"model": "gpt2", "tokens": ["a"]}, "tokenizer.ggml.merges"),
    "no scores": (llama_fields(scores="x"), "tokenizer.ggml.scores"),
    "token twice": ({"model": "gpt2", "tokens": ["a", "b", "a"], "merges": ["a b"]}, "'a' twice"),
    "merge of unknown tokens": ({"model": "gpt2", "tokens": ["a", "b"], "merges": ["a b"]}, "'a b'"),
    "merge of one": ({"model": "gpt2", "tokens": ["a", "b"], "merges": ["ab"]}, "'ab'"),
    "too few types": ({"model": "gpt2", "tokens": ["a", "b", "ab"], "merges": ["a b"], "token_type": [1, 1]}, "token_type"),
    "id out of range": (byte_level(eos_token_id=10_000), "eos_token_id"),
    "beginning without id": (byte_level(add_bos_token=True), "bos_token_id"),
    "byte tokens missing": (llama_fields(tokens=["<unk>", "a", "b"], scores=[0.0, -1.0, -2.0], token_type=[2, 1, 1]), "<0x00>"),
    "scores that leave it open": (llama_fields(scores=[0.0] * len(pieces_vocabulary()[0])), "same score"),
    "whitespace removal": (llama_fields(remove_extra_whitespaces=True), "remove_extra_whitespaces"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refused_by_name(case: str, written: Written) -> None:
    fields, named = BROKEN[case]
    path = written(**fields)
    with pytest.raises(UserError) as caught:
        load_tokenizer(path)
    message = str(caught.value)
    assert named in message
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("fields", [byte_level(pre="x" * 3000), byte_level(eos_token_id="x" * 3000), byte_level(model="x" * 3000)])
def test_what_damage_has_made_long_is_cut_in_the_message(fields: dict[str, Any], written: Written) -> None:
    with pytest.raises(UserError, match=r"'xxx.*x\.\.\.") as caught:
        load_tokenizer(written(**fields))
    assert len(str(caught.value)) < 500


VALUES = st.one_of(
    st.text(max_size=4), st.integers(0, 300), st.booleans(),
    st.lists(st.text(max_size=3), min_size=1, max_size=4), st.lists(st.integers(0, 7), min_size=1, max_size=300),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_vocabulary_loads_or_is_refused_in_a_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    fields = dict(data.draw(st.sampled_from([with_added(pre="gpt-2", bos_token_id=256, eos_token_id=257), llama_fields()])))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*fields, "add_bos_token", "add_eos_token", "unknown_token_id", "chat_template"]))
        value = fields.get(key)
        if isinstance(value, list) and value and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(value) - 1))
            put = data.draw(st.sampled_from([[], [value[at]] * 2, [value[0]], ["", "a b"] if isinstance(value[0], str) else [value[-1]]]))
            fields[key] = [*value[:at], *put, *value[at + 1 :]]
        else:
            fields[key] = data.draw(VALUES)
    path = tmp_path_factory.mktemp("mutant") / "model.gguf"
    write_vocabulary(path, fields)
    refused = ""
    try:
        tokenizer = load_tokenizer(path)
        if tokenizer is not None:
            tokenizer.decode(tokenizer.encode("hello, Zürich 12\n<|im_end|>"))
    except UserError as error:
        refused = str(error)
    assert not refused or (str(path) in refused and refused.isprintable())


def test_truncated_file(written: Written) -> None:
    path = written(**byte_level(pre="smollm"))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"model\.gguf.*truncated"):
        load_tokenizer(path)
