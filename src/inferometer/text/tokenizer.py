"""What the product needs of a tokenizer, and the one that the tokenizers library runs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inferometer.errors import UserError


class Tokenizer(ABC):
    """Turns text into token ids and back.

    `vocabulary_size` counts ids, added tokens included. `special_tokens` maps the names that a checkpoint gives its special
    tokens ("bos_token", "eos_token", ...) to their text. `eos_token_ids` are the ids that end a generation. `chat_template`
    is the Jinja source of the checkpoint's chat template, None if it has none. `decoder` describes, as the tokenizers library
    serialises it, how the texts of tokens join into a text; None is: with spaces between.
    """

    vocabulary_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: Mapping[str, str]
    decoder: Mapping[str, Any] | None

    @abstractmethod
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text`; with `special`, also those that the checkpoint puts around a text (beginning of sequence, ...).

        Raises UserError where `text` is not Unicode text (it holds half of a surrogate pair).
        """

    @abstractmethod
    def spans(self, text: str, *, special: bool = True) -> list[tuple[int, int, int]]:
        """As `encode`, each id with the characters of `text` that it stands for, from and up to; none for what was put around it."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`, without special tokens if `skip_special`. Bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def is_special(self, token_id: int) -> bool:
        """Whether `token_id` is a special token: one that `decode` leaves out by default."""

    @abstractmethod
    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, None if it has no such id."""


class LibraryTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer`. Padding and truncation that were saved with it are switched off."""

    def __init__(
        self,
        backend: Any,
        *,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        eos_token_ids: Sequence[int] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """`eos_token_ids` None is: the eos_token of `special_tokens`, if there is one."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self.vocabulary_size = backend.get_vocab_size(with_added_tokens=True)
        self.special_tokens = MappingProxyType(dict(special_tokens))
        self.bos_token_id = self._id_of("bos_token")
        own_eos = self._id_of("eos_token")
        self.eos_token_ids = tuple(eos_token_ids) if eos_token_ids is not None else () if own_eos is None else (own_eos,)
        self.chat_template = chat_template
        self.decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        refuse_surrogates(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def spans(self, text: str, *, special: bool = True) -> list[tuple[int, int, int]]:
        refuse_surrogates(text)
        encoding = self._backend.encode(text, add_special_tokens=special)
        return [(token_id, start, stop) for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, from which `load_tokenizer` makes the same tokenizer.

        Which tokens end a generation is for config.json to say. Raises OSError where they cannot be written.
        """
        (folder / "tokenizer.json").write_text(self._backend.to_str(pretty=False), encoding="utf-8")
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens}
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found


def refuse_surrogates(text: str) -> None:
    """Raises UserError where `text` holds a surrogate code point, which no tokenizer and no UTF-8 text can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise UserError(f"the text holds a lone surrogate, U+{code:04X}, at character {error.start}: remove it") from None
