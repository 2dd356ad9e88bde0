"""Text out of tokens as they come, cut so that nothing given out is ever taken back."""

from __future__ import annotations

from typing import Final

from inferometer.text.decoding import Decoding, decoding
from inferometer.text.tokenizer import Tokenizer

_REPLACEMENT: Final = "\ufffd"


class IncrementalDetokeniser:
    """The pieces of text that generated tokens add, for one sequence.

    The pieces concatenate to `tokenizer.decode` of all ids. A piece may be empty: half of a character is held back until the
    rest has come, or until `finish`, so U+FFFD appears only where the whole text has it. With byte fallback (SentencePiece) a
    run of byte tokens is held back until it ends, because one bad byte spoils the run. The cost of a token does not depend on
    how many came before it, save for decoders outside `inferometer.text.decoding` (CTC, BPE with a word suffix), whose text
    is decoded anew at every token and given out one token late.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        exact = decoding(tokenizer.decoder)
        self._decoding: Decoding | _Redecoding = _Redecoding(tokenizer, skip_special) if exact is None else exact

    def push(self, token_id: int) -> str:
        """The text that is certain now that `token_id` has come."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        if isinstance(self._decoding, _Redecoding):
            return self._decoding.push(token_id)
        token = self._tokenizer.token(token_id)
        return "" if token is None else self._decoding.push(token)

    def finish(self) -> str:
        """The rest of the text, once the last token has come."""
        return self._decoding.finish()


class _Redecoding:
    """For any decoder: gives out what the last two decodings have in common."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._text = ""
        self._given = 0

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        before, self._text = self._text, self._decode()
        certain = _common_prefix(before, self._text).rstrip(_REPLACEMENT)
        return self._give(len(certain))

    def finish(self) -> str:
        return self._give(len(self._text))

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special=self._skip_special)

    def _give(self, end: int) -> str:
        start, self._given = self._given, max(self._given, end)
        return self._text[start : self._given]


def _common_prefix(a: str, b: str) -> str:
    end = next((i for i, (left, right) in enumerate(zip(a, b, strict=False)) if left != right), min(len(a), len(b)))
    return a[:end]
