"""Small tokenizers of every kind, trained here, and the texts that they are compared on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gguf_tokenizers import write_vocabulary

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 12345 times; we'll see 3.14 and 2024.",
    "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass\n",
    "Ünïcödé naïve café Zürich 中文字符 こんにちは 🎉👩‍👩‍👧 don't DON'T I'm you're they've",
    "a b  c   d    e     f\n\n3. item\r\n4. item",
] * 4

TEXTS = [
    "",
    " ",
    "Hello world",
    "  two  spaces ",
    "The quick brown fox doesn't jump.",
    "x  12\n\n3. 2024",
    "naïve Café ÜBER 中文 🎉 👩‍👩‍👧",
    "tabs\tand\r\nnewlines\n",
    "don't DON'T I'm , . ! ? n't",
    "a\u0301 e\u0301 \u00a0 \u200b",
    "<s>text</s> and <|endoftext|> [MASK] <pad>",
    "unseen ꙮ \U0001f9ff",
]


def _bpe_trainer(special: list[str], size: int = 420) -> trainers.BpeTrainer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)


def byte_level(special: list[str], pre: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, _bpe_trainer(special))
    return tokenizer


def sentencepiece_like(*, prefix: bool = True) -> Tokenizer:
    """As Llama 2's tokenizer.json: spaces as U+2581, byte fallback, no pre-tokenizer."""
    single = sorted({c for text in CORPUS for c in text if ord(c) < 0x250 and c not in " \n\r\t"})
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *single])}
    merges = []
    for word in ("▁t h e", "▁q u i c k", "▁ ▁", "▁▁ ▁", "o v e r", "▁d o g", "h e", "l l", "▁w o r l d"):
        parts = word.split(" ")
        while len(parts) > 1:
            for part in parts[:1]:
                for i in range(1, len(part)):  # builds the first part up from characters
                    left, right = part[:i], part[i]
                    if left in vocab and right in vocab and left + right not in vocab:
                        vocab[left + right] = len(vocab)
                        merges.append((left, right))
            joined = parts[0] + parts[1]
            if joined not in vocab:
                vocab[joined] = len(vocab)
                merges.append((parts[0], parts[1]))
            parts = [joined, *parts[2:]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], pair=None, special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=260, special_tokens=["<unk>", "</s>"], show_progress=False))
    return tokenizer


def word_piece(*, lowercase: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    around = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=None, special_tokens=around)
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["<unk>", "</s>"], show_progress=False))
    return tokenizer


BUILDERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": lambda: byte_level(["<s>", "</s>"]),
    "digits": lambda: byte_level(
        ["<|endoftext|>"],
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    ),
    "bloom": lambda: byte_level(
        ["<unk>", "<s>", "</s>", "<pad>"],
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "sentencepiece": sentencepiece_like,
    "sentencepiece-no-prefix": lambda: sentencepiece_like(prefix=False),
    "metaspace": metaspace,
    "word-piece": word_piece,
    "word-level": word_level,
}


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session", params=sorted(BUILDERS))
def any_backend(request: pytest.FixtureRequest) -> Tokenizer:
    """One small tokenizer of each kind, with two added tokens, one of them special."""
    tokenizer = BUILDERS[request.param]()
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("中é文", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    return tokenizer


@pytest.fixture(scope="session")
def build() -> Callable[[str], Tokenizer]:
    """Makes a small tokenizer by name."""
    return lambda name: BUILDERS[name]()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes files into a folder: mappings as JSON, texts as they are. A keyword's "__" stands for the dot of the name."""

    def _write(**files: Any) -> Path:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
        return tmp_path

    return _write


@pytest.fixture
def write_slow(tmp_path: Path, write: Callable[..., Path]) -> Callable[..., Path]:
    """Writes a byte-level tokenizer as vocab.json and merges.txt, as GPT-2 and OPT have it, beside other files."""

    def _write_slow(special: list[str], **files: Any) -> Path:
        byte_level(special).model.save(str(tmp_path))
        return write(**files)

    return _write_slow


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF file with the given tokenizer.* fields."""

    def make(**fields: Any) -> Path:
        path = tmp_path / "model.gguf"
        write_vocabulary(path, fields)
        return path

    return make
