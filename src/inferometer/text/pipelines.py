"""The tokenizer classes that checkpoints declare: what each does where its files leave it open."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from inferometer.errors import UserError

_END: Final = "<|endoftext|>"
_QWEN2_SPLIT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Pipeline(Enum):
    """A tokenizer class of transformers that this product knows; PLAIN is any that adds nothing to its tokenizer.json."""

    PLAIN = "a generic class"
    GPT2 = "GPT2Tokenizer"
    QWEN2 = "Qwen2Tokenizer"
    BERT = "BertTokenizer"
    LLAMA = "LlamaTokenizer"

    @classmethod
    def of_class(cls, name: str) -> Pipeline:
        """The pipeline of the class `name`; "Fast" at its end makes no difference."""
        return _BY_CLASS.get(name.removesuffix("Fast"), cls.PLAIN)

    @classmethod
    def of_model_type(cls, model_type: Any) -> Pipeline | None:
        """The pipeline that config.json's model_type stands for, None where it leaves that to the declared class."""
        return _BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None

    @property
    def default_tokens(self) -> Mapping[str, str]:
        """The named tokens, where the checkpoint does not name them."""
        return _DEFAULT_TOKENS[self]


_BY_CLASS: Final[Mapping[str, Pipeline]] = MappingProxyType(
    {
        "GPT2Tokenizer": Pipeline.GPT2,
        "Qwen2Tokenizer": Pipeline.QWEN2,
        "BertTokenizer": Pipeline.BERT,
        "DistilBertTokenizer": Pipeline.BERT,
        "LlamaTokenizer": Pipeline.LLAMA,
    }
)
_BY_MODEL_TYPE: Final[Mapping[str, Pipeline]] = MappingProxyType(
    {
        "gpt2": Pipeline.GPT2,
        "opt": Pipeline.GPT2,
        "qwen2": Pipeline.QWEN2,
        "bert": Pipeline.BERT,
        "gpt_bigcode": Pipeline.PLAIN,
        "mistral": Pipeline.PLAIN,
    }
)
_DEFAULT_TOKENS: Final[Mapping[Pipeline, Mapping[str, str]]] = MappingProxyType(
    {
        Pipeline.PLAIN: {},
        Pipeline.GPT2: {"bos_token": _END, "eos_token": _END, "unk_token": _END},
        Pipeline.QWEN2: {"eos_token": _END, "unk_token": _END, "pad_token": _END},
        Pipeline.BERT: {
            "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
        },
        Pipeline.LLAMA: {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    }
)  # fmt: skip
_GENERIC: Final = frozenset({"", "PreTrainedTokenizer", "TokenizersBackend", "GPT2Tokenizer"})
"""Declared classes that leave vocab.json with merges.txt to be read as what it was made for: GPT-2's tokenizer."""


def declared_pipeline(config: Mapping[str, Any], model: Mapping[str, Any], backend: Any) -> Pipeline:
    """The pipeline of a folder, by the precedence of transformers' AutoTokenizer.

    `config` is tokenizer_config.json, `model` config.json, `backend` what tokenizer.json holds, None without one.
    """
    registered = Pipeline.of_model_type(model.get("model_type"))
    name = _declared_class(config, model)
    if not name or registered in (Pipeline.PLAIN, Pipeline.QWEN2):
        return registered or Pipeline.PLAIN
    declared = Pipeline.of_class(name)
    if declared is Pipeline.LLAMA and backend is not None and "ByteLevel" in f"{backend.pre_tokenizer} {backend.decoder}":
        return Pipeline.PLAIN  # a byte-level tokenizer (Llama 3) under the name of the SentencePiece one
    return declared


def adjust(kind: Pipeline, backend: Any, config: Mapping[str, Any]) -> None:
    """Applies the options of the class in `config` to what tokenizer.json says."""
    from tokenizers import normalizers, pre_tokenizers

    if kind is Pipeline.GPT2 and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        backend.pre_tokenizer.add_prefix_space = bool(config.get("add_prefix_space", False))
    if kind is Pipeline.BERT and isinstance(backend.normalizer, normalizers.BertNormalizer):
        backend.normalizer = _bert_normalizer(config)


def byte_level_bpe(folder: Path, kind: Pipeline, config: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    """The tokenizer of vocab.json and merges.txt: byte-level BPE as GPT-2 and OPT use it, or Qwen2's variant.

    Raises UserError, naming the file, where one is missing or damaged, or declared to be another class's.
    """
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    name = _declared_class(config, model)
    if kind is not Pipeline.QWEN2 and name.removesuffix("Fast") not in _GENERIC:
        raise _not_built(folder / "vocab.json", name)
    for part in ("vocab.json", "merges.txt"):
        if not (folder / part).is_file():
            raise UserError(f"{folder / part} is missing: vocab.json and merges.txt are read together; fetch the model again")
    try:
        vocab, merges = BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        bpe = BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    except Exception as error:  # noqa: BLE001  (the library raises nothing more precise)
        raise _unreadable(folder / "vocab.json or merges.txt", error) from None
    backend = Backend(bpe)
    prefix = bool(config.get("add_prefix_space", False))
    if kind is Pipeline.QWEN2:
        backend.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return backend


def word_piece(path: Path, kind: Pipeline, config: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    """The tokenizer of the vocab.txt at `path`: BERT's WordPiece. Raises UserError, naming it, where it is damaged or another class's."""
    from tokenizers.models import WordPiece

    name = _declared_class(config, model)
    if name and kind is not Pipeline.BERT:
        raise _not_built(path, name)
    try:
        vocab = WordPiece.read_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises nothing more precise)
        raise _unreadable(path, error) from None
    declared = config.get("unk_token", Pipeline.BERT.default_tokens["unk_token"])
    unknown = str(declared["content"] if isinstance(declared, Mapping) else declared)
    if unknown not in vocab:
        raise UserError(f"{path}: lacks the unknown token {unknown}, which every unlisted word becomes; fetch the model again")
    return bert_backend(vocab, unknown, config)


def bert_backend(vocab: Mapping[str, int], unknown: str, config: Mapping[str, Any]) -> Any:
    """BERT's tokenizer over `vocab`, without what it puts around a text; `config` has the options of tokenizer_config.json."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, pre_tokenizers
    from tokenizers.models import WordPiece

    backend = Backend(WordPiece(dict(vocab), unk_token=unknown))
    backend.normalizer = _bert_normalizer(config)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def surround(kind: Pipeline, backend: Any, config: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Sets what goes around a text, unless tokenizer.json has: BERT's classifier and separator, else what `config` asks for."""
    if backend.post_processor is not None:
        return
    if kind is Pipeline.BERT:
        before, after = named.get("cls_token"), named.get("sep_token")
    else:
        before = named.get("bos_token") if config.get("add_bos_token", False) else None
        after = named.get("eos_token") if config.get("add_eos_token", False) else None
    put_around(backend, None if before is None else str(before), None if after is None else str(after))


def put_around(backend: Any, before: str | None, after: str | None) -> None:
    """Makes `backend` put the token `before` before a text and `after` after it, where `encode` is asked for special tokens."""
    from tokenizers import processors

    around = [token for token in (before, after) if token is not None]
    if around:
        # As a list: in a string, a token with a space or a colon in it would be taken apart.
        single = [*([before] if before is not None else []), "$A", *([after] if after is not None else [])]
        ids = [(token, backend.token_to_id(token)) for token in dict.fromkeys(around)]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=None, special_tokens=ids)


def _bert_normalizer(config: Mapping[str, Any]) -> Any:
    from tokenizers.normalizers import BertNormalizer

    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )


def _declared_class(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    return name if isinstance(name, str) else ""


def _not_built(path: Path, name: str) -> UserError:
    return UserError(
        f"{path}: the class {name} is not built from this file; "
        "save the tokenizer with transformers' save_pretrained, which writes the tokenizer.json that is read instead"
    )


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read ({' '.join(str(error).split())}); fetch the model again")
