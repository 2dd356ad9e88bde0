"""The tokenizers of the embedded models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from inferometer.model.gguf_file import GgufFile
from inferometer.model.store import locate
from inferometer.text.chat import ChatTemplate
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.load import load_tokenizer
from inferometer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real


def located(name: str) -> Path:
    path = locate(name)
    if path is None:
        pytest.skip(f"{name} is not in the cache: inferometer models fetch {name}")
    return path


def loaded(path: Path) -> Tokenizer:
    tokenizer = load_tokenizer(path)
    assert tokenizer is not None
    return tokenizer


SMOLLM2_IDS = [
    ("The capital of France is", [504, 3575, 282, 4649, 314]),
    ("x  12", [104, 256, 33, 34]),
    ("\n\n3.", [1116, 35, 30]),
    ("It's 3.14, isn't it?", [1589, 506, 216, 35, 30, 33, 36, 28, 3247, 982, 357, 47]),
    ("naïve 🎉 中文", [3546, 46494, 15107, 232, 227, 216, 28589, 29184]),
]


@pytest.mark.parametrize(("text", "ids"), SMOLLM2_IDS)
def test_smollm2_ids(text: str, ids: Sequence[int]) -> None:
    tokenizer = loaded(located("smollm2-135m"))
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_smollm2_is_digits_then_gpt2(texts: list[str]) -> None:
    path = located("smollm2-135m")
    with GgufFile(path) as file:
        tokens, merges = file.values("tokenizer.ggml.tokens"), file.values("tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    reference = Backend(models.BPE(vocab={str(token): i for i, token in enumerate(tokens)}, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer = loaded(path)
    for text in (text.replace("<|endoftext|>", "") for text in texts):
        assert tokenizer.encode(text) == reference.encode(text).ids


def test_smollm2_facts_and_chat() -> None:
    tokenizer = loaded(located("smollm2-135m"))
    assert (tokenizer.vocabulary_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, (2,))
    chat = ChatTemplate.of(tokenizer)
    assert chat is not None
    ids = tokenizer.encode(chat.render([{"role": "user", "content": "Hi"}]), special=False)
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198]
    assert ids == [*system, 1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]


def test_smollm2_streams(texts: list[str]) -> None:
    tokenizer = loaded(located("smollm2-135m"))
    for text in texts:
        ids = [1, *tokenizer.encode(text), 2]
        detokeniser = IncrementalDetokeniser(tokenizer)
        assert "".join([*map(detokeniser.push, ids), detokeniser.finish()]) == tokenizer.decode(ids)


def test_smollm2_loads_quickly() -> None:
    path = located("smollm2-135m")
    start = time.perf_counter()
    loaded(path)
    # A fifth of a second on an idle core; reading the header token by token through numpy takes three seconds.
    assert time.perf_counter() - start < 2


def test_minilm_equals_transformers(texts: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = located("all-minilm-l6-v2")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = loaded(folder)
    for text in [*texts, "word " * 600]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
