"""A folder's tokenizer is the one that transformers makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from inferometer.errors import UserError
from inferometer.text.load import load_tokenizer
from inferometer.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

Write = Callable[..., Path]
Build = Callable[[str], Backend]


def loaded(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def assert_same(folder: Path, texts: list[str]) -> Tokenizer:
    """Compares with AutoTokenizer: ids with and without special tokens, texts with and without them, sizes and names."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = loaded(folder)
    for text in texts:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, special=special) == ids, (text, special)
            for skip in (True, False):
                expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special=skip) == expected, (text, skip)
    assert ours.vocabulary_size == len(theirs)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.special_tokens == theirs.special_tokens_map
    return ours


@pytest.mark.parametrize("name", ["byte-level", "digits", "bloom", "sentencepiece", "sentencepiece-no-prefix", "metaspace", "word-level"])
def test_saved_by_transformers(name: str, build: Build, tmp_path: Path, texts: list[str]) -> None:
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=build(name), eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(tmp_path)
    assert_same(tmp_path, texts)


@pytest.mark.parametrize("model_type", ["llama", "bloom", "gpt_bigcode", "mistral", "gpt2", "opt"])
def test_bare_tokenizer_json(model_type: str, build: Build, write: Write, texts: list[str]) -> None:
    folder = write(config__json={"model_type": model_type}, tokenizer__json=build("byte-level").to_str())
    assert_same(folder, texts)


def test_class_option_overrides_tokenizer_json(build: Build, write: Write, texts: list[str]) -> None:
    backend = build("byte-level")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    folder = write(config__json={"model_type": "gpt2"}, tokenizer__json=backend.to_str())
    assert_same(folder, texts)


def test_tokenizer_json_beats_the_declared_class(build: Build, write: Write) -> None:
    # SmolLM2's folder: the class is GPT-2's, the pipeline splits digits.
    backend = build("digits")
    folder = write(
        config__json={"model_type": "llama"}, tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer"}, tokenizer__json=backend.to_str()
    )
    for text in ("x  12", "\n\n3.", "2024"):
        assert loaded(folder).encode(text) == backend.encode(text).ids


def test_llama_class_over_a_byte_level_tokenizer(build: Build, write: Write, texts: list[str]) -> None:
    # Llama 3's kind of folder. Not every version of transformers that is supported reads it rightly.
    backend = build("byte-level")
    folder = write(
        config__json={"model_type": "llama"},
        tokenizer_config__json={"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"},
        tokenizer__json=backend.to_str(),
    )
    tokenizer = loaded(folder)
    assert tokenizer.special_tokens == {"eos_token": "</s>"}
    for text in texts:
        assert tokenizer.encode(text) == backend.encode(text).ids


def test_what_goes_around_a_text_is_tokenizer_jsons_to_say(build: Build, write: Write, texts: list[str]) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    folder = write(
        config__json={"model_type": "llama"},
        tokenizer_config__json={**config, "add_eos_token": True},
        tokenizer__json=build("sentencepiece").to_str(),
    )
    assert loaded(folder).encode("over") == [1, *loaded(folder).encode("over", special=False)]
    assert_same(folder, texts)


def test_saved_truncation_and_padding_do_not_apply(build: Build, write: Write, texts: list[str]) -> None:
    backend = build("word-piece")
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    folder = write(config__json={"model_type": "bert"}, tokenizer__json=backend.to_str())
    assert_same(folder, texts)
    assert len(loaded(folder).encode("the quick brown fox jumps over the lazy dog")) > 8


def test_tokens_that_only_the_configuration_adds(build: Build, write: Write, texts: list[str]) -> None:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    decoder = {
        "420": {"content": "<a>", **flags, "special": True},
        "421": {"content": "<b>", **flags, "lstrip": True, "special": False},
        "422": {"content": "quick", **flags, "normalized": True, "single_word": True, "special": False},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": decoder,
        "eos_token": "<a>",
        "additional_special_tokens": ["<extra>"],
        "image_token": "<image>",
    }
    folder = write(config__json={"model_type": "llama"}, tokenizer_config__json=config, tokenizer__json=build("byte-level").to_str())
    ours = assert_same(folder, [*texts, "x <a> y <b>z <extra><image> quick quicker"])
    assert ours.decode(ours.encode("x<a><b><extra>"), skip_special=True) == "x<b>"


def test_split_special_tokens(build: Build, write: Write, texts: list[str]) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "split_special_tokens": True}
    folder = write(config__json={"model_type": "llama"}, tokenizer_config__json=config, tokenizer__json=build("byte-level").to_str())
    assert_same(folder, texts)


GPT2_CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"config__json": {"model_type": "gpt2"}},
    "gpt2, prefix space": {"config__json": {"model_type": "gpt2"}, "tokenizer_config__json": {"add_prefix_space": True}},
    "opt": {
        "config__json": {"model_type": "opt"},
        "tokenizer_config__json": {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "add_prefix_space": False,
            **{
                name: {
                    "__type": "AddedToken",
                    "content": "</s>",
                    "lstrip": False,
                    "normalized": True,
                    "rstrip": False,
                    "single_word": False,
                }
                for name in ("unk_token", "bos_token", "eos_token")
            },
        },
        "special_tokens_map__json": {
            **{
                name: {"content": "</s>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
                for name in ("unk_token", "bos_token", "eos_token")
            },
            "pad_token": "<pad>",
        },
    },
    "added_tokens.json": {
        "config__json": {"model_type": "gpt2"},
        "tokenizer_config__json": {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "<eot>", "add_eos_token": True},
        "added_tokens__json": {"<eot>": 423, "<plain>": 424},
    },
    "no eos": {"config__json": {"model_type": "gpt2"}, "tokenizer_config__json": {"eos_token": None, "bos_token": "<s>"}},
    "qwen2": {"config__json": {"model_type": "qwen2"}, "tokenizer_config__json": {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None}},
}


@pytest.mark.parametrize("case", GPT2_CASES)
def test_vocab_json_and_merges(case: str, write_slow: Write, texts: list[str]) -> None:
    folder = write_slow(["<pad>", "</s>", "<s>"], **GPT2_CASES[case])
    ours = assert_same(folder, [*texts, "x<eot>y <plain> z", "2024 e\u0301"])
    if case == "opt":
        assert ours.encode("hi")[0] == ours.bos_token_id == ours.eos_token_ids[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"cls_token": "[PAD]"},
    ],
)
@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
def test_bert(form: str, options: dict[str, Any], build: Build, write: Write, texts: list[str], tmp_path: Path) -> None:
    backend = build("word-piece")
    if form == "vocab.txt":
        backend.model.save(str(tmp_path))
    else:
        if "cls_token" in options:
            backend.post_processor = None
        write(tokenizer__json=backend.to_str())
    folder = write(config__json={"model_type": "bert"}, tokenizer_config__json={"tokenizer_class": "BertTokenizer", **options})
    assert_same(folder, texts)


def test_class_saved_by_transformers(write_slow: Write, texts: list[str], tmp_path: Path) -> None:
    source = write_slow(["<pad>", "</s>", "<s>"], config__json={"model_type": "opt"}, tokenizer_config__json={"add_bos_token": True})
    target = tmp_path / "saved"
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(target)
    (target / "config.json").write_text(json.dumps({"model_type": "opt"}))
    assert not (target / "vocab.json").exists()
    ours = assert_same(target, texts)
    assert ours.encode("hi")[0] == ours.bos_token_id


def test_ends_of_generation(build: Build, write: Write) -> None:
    tokenizer = build("byte-level").to_str()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    folder = write(tokenizer__json=tokenizer, tokenizer_config__json=config)
    assert loaded(folder).eos_token_ids == (1,)
    assert loaded(write(config__json={"eos_token_id": 7})).eos_token_ids == (7,)
    assert loaded(write(generation_config__json={"eos_token_id": [5, 6]})).eos_token_ids == (5, 6)
    assert loaded(write(generation_config__json={"eos_token_id": None})).eos_token_ids == (7,)


def test_chat_template_sources(build: Build, write: Write) -> None:
    folder = write(tokenizer__json=build("byte-level").to_str())
    assert loaded(folder).chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert loaded(write(tokenizer_config__json={"chat_template": named})).chat_template == "D"
    assert loaded(write(tokenizer_config__json={"chat_template": "C"})).chat_template == "C"
    assert loaded(write(chat_template__jinja="{{ 1 }}\n")).chat_template == "{{ 1 }}\n"


def test_no_tokenizer_files(write: Write) -> None:
    assert load_tokenizer(write(config__json={"model_type": "gpt2"}, tokenizer_config__json={})) is None
    assert load_tokenizer(None) is None


def test_tokenizer_json_by_its_own_path(build: Build, write: Write) -> None:
    folder = write(tokenizer__json=build("byte-level").to_str())
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    assert tokenizer is not None
    assert tokenizer.encode("quick") == loaded(folder).encode("quick")


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "corrupt tokenizer.json": ({"tokenizer__json": "{ not json"}, "tokenizer.json"),
    "tokenizer.json of another kind": ({"tokenizer__json": "{}"}, "tokenizer.json"),
    "corrupt configuration": ({"tokenizer_config__json": "{", "vocab__txt": "[UNK]\n"}, "tokenizer_config.json"),
    "configuration is a list": ({"tokenizer_config__json": [], "vocab__txt": "[UNK]\n"}, "tokenizer_config.json"),
    "corrupt vocab.json": ({"vocab__json": "{", "merges__txt": ""}, "vocab.json"),
    "no merges": ({"vocab__json": {}}, "merges.txt"),
    "no vocabulary": ({"merges__txt": ""}, "vocab.json"),
    "merges of another vocabulary": ({"vocab__json": {"a": 0}, "merges__txt": "#version: 0.2\nq z\n"}, "merges.txt"),
    "sentencepiece alone": ({"tokenizer__model": "x"}, "tokenizer.model"),
    "class of its own": (
        {"vocab__json": {}, "merges__txt": "", "tokenizer_config__json": {"tokenizer_class": "RobertaTokenizer"}},
        "Roberta",
    ),
    "class that is not BERT's": ({"vocab__txt": "a\n", "tokenizer_config__json": {"tokenizer_class": "MPNetTokenizer"}}, "MPNetTokenizer"),
    "added token without text": (
        {"vocab__txt": "[UNK]\n", "tokenizer_config__json": {"added_tokens_decoder": {"1": {"lstrip": True}}}},
        "tokenizer_config.json",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_clear_line_for_what_cannot_be_read(case: str, write: Write) -> None:
    files, named = BROKEN[case]
    with pytest.raises(UserError) as caught:
        load_tokenizer(write(**files))
    message = str(caught.value)
    assert named in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["absent", "file.txt"])
def test_path_that_is_no_tokenizer(name: str, write: Write) -> None:
    folder = write(file__txt="x")
    with pytest.raises(UserError, match=name):
        load_tokenizer(folder / name)


def test_a_word_list_without_its_unknown_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[CLS]\n[SEP]\nword\n")
    with pytest.raises(UserError, match=r"vocab\.txt: lacks the unknown token \[UNK\]"):
        load_tokenizer(tmp_path)


def test_a_path_too_long_for_any_file_is_no_tokenizer() -> None:
    with pytest.raises(UserError, match="no tokenizer at x"):
        load_tokenizer("x" * 5000)
