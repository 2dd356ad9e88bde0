"""The tokenizer in a GGUF file's metadata: GPT-2's byte-level BPE, Llama's SentencePiece BPE, BERT's WordPiece.

A GGUF file stores the vocabulary, not the pipeline around it: `tokenizer.ggml.model` names the algorithm and
`tokenizer.ggml.pre` how text is split before it. What a name stands for is llama.cpp's definition (src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from inferometer.errors import ModelError, shown
from inferometer.model.gguf_file import GgufArray, GgufFile
from inferometer.text.pipelines import bert_backend, put_around
from inferometer.text.sentencepiece_bpe import sentencepiece_bpe
from inferometer.text.tokenizer import LibraryTokenizer

_KEY: Final = "tokenizer.ggml."
_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_SPECIAL_IDS: Final = MappingProxyType(
    {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "sep_token": "seperator_token_id",  # the format's own spelling
        "pad_token": "padding_token_id",
        "cls_token": "cls_token_id",
        "mask_token": "mask_token_id",
    }
)
_WORD_START: Final = "\u2581"

_GPT2_SPLIT: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT: Final = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """`splits` are applied one after the other, each to the pieces that the one before has left.

    `whole_words_first`: a piece that is a token is that token, whatever the merges say. `adds_bos`: unless the file says no.
    """

    splits: tuple[str, ...]
    whole_words_first: bool = False
    adds_bos: bool = False


_PRE_TOKENIZERS: Final[Mapping[str, _PreTokenizer]] = MappingProxyType(
    {
        "default": _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "gpt-2": _PreTokenizer((_GPT2_SPLIT,)),
        "llama-bpe": _PreTokenizer((_LLAMA3_SPLIT,), whole_words_first=True, adds_bos=True),
        "smollm": _PreTokenizer((r"\p{N}", _GPT2_SPLIT)),
        "starcoder": _PreTokenizer((r"\p{N}", _GPT2_SPLIT)),
    }
)


def gguf_tokenizer(path: Path | str) -> LibraryTokenizer | None:
    """The tokenizer of the GGUF file at `path`, None where it holds no vocabulary.

    Raises ModelError, naming the file, where the file is damaged, or its algorithm or pre-tokenizer is not one of those above.
    """
    with GgufFile(path) as file:
        if file.metadata.get(f"{_KEY}model", "none") in ("none", "no_vocab"):
            return None
        return _Vocabulary(file).tokenizer()


class _Vocabulary:
    """What the metadata says, checked."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.tokens = self._strings("tokens")
        self.types = self._numbers("token_type") or [_NORMAL] * len(self.tokens)
        self.ids = self._ids()
        self.named = {name: token_id for name, key in _SPECIAL_IDS.items() if (token_id := self._id(key)) is not None}

    def tokenizer(self) -> LibraryTokenizer:
        algorithm = self._file.metadata[f"{_KEY}model"]
        if algorithm == "gpt2":
            backend, adds_bos = self._byte_level()
            before, after = self._asked("bos", adds_bos), self._asked("eos", False)
        elif algorithm == "llama":
            backend = self._sentencepiece()
            before, after = self._asked("bos", True), self._asked("eos", False)
        elif algorithm == "bert":
            backend = self._word_piece()
            before, after = self._text("cls_token", "bos_token"), self._text("sep_token", "eos_token")
        else:
            raise self._bad(f"the tokenizer {shown(algorithm)} is not supported, only gpt2, llama and bert")
        self._mark_added(backend)
        put_around(backend, before, after)
        ends = [self.named.get("eos_token"), self._id("eot_token_id"), self._id("eom_token_id")]
        template = self._file.metadata.get("tokenizer.chat_template")
        return LibraryTokenizer(
            backend,
            special_tokens={name: self.tokens[token_id] for name, token_id in self.named.items()},
            eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
            chat_template=template if isinstance(template, str) else None,
        )

    def _byte_level(self) -> tuple[Any, bool]:
        from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
        from tokenizers.models import BPE

        name = self._file.metadata.get(f"{_KEY}pre", "default")
        pre = _PRE_TOKENIZERS.get(str(name))
        if pre is None:
            raise self._bad(f"the pre-tokenizer {shown(name)} is not supported, only {', '.join(_PRE_TOKENIZERS)}")
        merges = [self._merge(merge) for merge in self._strings("merges")]
        backend = Tokenizer(BPE(vocab=self.ids, merges=merges, fuse_unk=False, ignore_merges=pre.whole_words_first))
        splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        backend.decoder = decoders.ByteLevel()
        return backend, pre.adds_bos

    def _sentencepiece(self) -> Any:
        scores = self._numbers("scores")
        if not scores:
            raise self._bad(f"the metadata lacks {_KEY}scores")
        if self._flag("remove_extra_whitespaces", False):
            raise self._bad(f"{_KEY}remove_extra_whitespaces is not supported")
        pieces = {token: score for token, score, kind in zip(self.tokens, scores, self.types, strict=True) if kind == _NORMAL}
        unknown = self.named.get("unk_token")
        try:
            return sentencepiece_bpe(
                self.ids, pieces, None if unknown is None else self.tokens[unknown], space_prefix=self._flag("add_space_prefix", True)
            )
        except ValueError as error:
            raise self._bad(str(error)) from None

    def _word_piece(self) -> Any:
        for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind == _NORMAL:
                self.tokens[i] = _word_piece_spelling(token)
        lowercase = self._flag("normalizer.lowercase", True)
        config = {"do_lower_case": lowercase, "strip_accents": self._flag("normalizer.strip_accents", lowercase)}
        return bert_backend(self._ids(), self._text("unk_token"), config)

    def _mark_added(self, backend: Any) -> None:
        """Control and unknown tokens are special; user-defined ones are found whole in a text but are part of it."""
        from tokenizers import AddedToken

        special = {i for i, kind in enumerate(self.types) if kind in (_CONTROL, _UNKNOWN)}
        # A file without types, or with a wrong one here, still means these to end and begin a text, not to be in it.
        special |= {self.named[name] for name in ("bos_token", "eos_token") if name in self.named}
        backend.add_special_tokens([AddedToken(self.tokens[i], special=True, normalized=False) for i in sorted(special)])
        own = [i for i, kind in enumerate(self.types) if kind == _USER_DEFINED and i not in special]
        backend.add_tokens([AddedToken(self.tokens[i], special=False, normalized=False) for i in own])

    def _asked(self, which: str, default: bool) -> str | None:
        """The token to put around a text, if the file wants it there; where it does not say, only if it has such a token."""
        wanted = self._file.metadata.get(f"{_KEY}add_{which}_token")
        if wanted is None:
            wanted = default and f"{which}_token" in self.named
        return self._text(f"{which}_token") if wanted else None

    def _text(self, *names: str) -> str:
        """The token of the first of `names` that the file has."""
        for name in names:
            if name in self.named:
                return self.tokens[self.named[name]]
        raise self._bad(f"the metadata lacks {_KEY}{_SPECIAL_IDS[names[0]]}")

    def _ids(self) -> dict[str, int]:
        ids = {token: i for i, token in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if ids[token] != i)
            raise self._bad(f"{_KEY}tokens has {shown(twice)} twice")
        return ids

    def _merge(self, merge: str) -> tuple[str, str]:
        # Neither side is empty, so a space in front belongs to the left one.
        left, space, right = merge[1:].partition(" ")
        left = merge[:1] + left
        if not space or left not in self.ids or right not in self.ids or left + right not in self.ids:
            raise self._bad(f"the merge {shown(merge)} does not join two tokens into a third")
        return left, right

    def _strings(self, key: str) -> list[str]:
        return [str(value) for value in self._values(key, required=True)]

    def _numbers(self, key: str) -> list[Any]:
        values = self._values(key, required=False)
        if values and len(values) != len(self.tokens):
            raise self._bad(f"{_KEY}{key} has {len(values)} values for {len(self.tokens)} tokens")
        return values

    def _values(self, key: str, *, required: bool) -> list[Any]:
        if isinstance(self._file.metadata.get(_KEY + key), GgufArray):
            return list(self._file.values(_KEY + key))
        if required:
            raise self._bad(f"the metadata lacks {_KEY}{key}")
        return []

    def _id(self, key: str) -> int | None:
        token_id = self._file.metadata.get(_KEY + key)
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            raise self._bad(f"{_KEY}{key} is {shown(token_id)}, which is no id of the {len(self.tokens)} tokens")
        return token_id

    def _flag(self, key: str, default: bool) -> bool:
        return bool(self._file.metadata.get(_KEY + key, default))

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self._file.path}: {what}")


def _word_piece_spelling(token: str) -> str:
    """The file marks what begins a word, WordPiece what continues one. Placeholders such as [unused7] have no mark in either."""
    if token.startswith(_WORD_START):
        return token.removeprefix(_WORD_START)
    placeholder = len(token) > 2 and token.startswith("[") and token.endswith("]")
    return token if placeholder else f"##{token}"
