"""SentencePiece's BPE, as the tokenizers library runs it: merges instead of scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

_SPACE: Final = "\u2581"
_BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))


def sentencepiece_bpe(ids: Mapping[str, int], scores: Mapping[str, float], unknown: str | None, *, space_prefix: bool) -> Any:
    """The backend for the vocabulary `ids`, of which the pieces in `scores` can come out of a text.

    SentencePiece joins, of all neighbours that make a piece, those that make the one with the highest score, leftmost first.
    With `space_prefix` a space is put before the text and before what follows a special token.
    Raises ValueError where the library could not cut every text as SentencePiece does.
    """
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    missing = next((byte for byte in _BYTES if byte not in ids), None)
    if missing is not None:
        raise ValueError(f"the byte token {missing} is missing, without which not every text can be encoded")
    backend = Tokenizer(BPE(vocab=dict(ids), merges=_merges(scores), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if space_prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if space_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first."""
    single = {character for character in scores if len(character) == 1}
    for piece in scores:
        # The library turns a character that is no piece into bytes before it merges, SentencePiece after.
        if len(piece) > 1 and not single.issuperset(piece):
            raise ValueError(f"the piece {piece!r} has a character that is no piece itself, which is not supported")
    ranked = sorted((piece for piece in scores if _splits(piece, scores)), key=lambda piece: -scores[piece])
    for first, second in pairwise(ranked):
        # Between equal scores SentencePiece takes the leftmost, the library the first merge. Runs of one character, which
        # Llama's vocabulary gives one score, come to the same: both fill the run with the longest pieces from the left.
        if scores[first] == scores[second] and len({*first, *second}) > 1:
            raise ValueError(f"the pieces {first!r} and {second!r} have the same score, which is not supported")
    return [(piece[:i], piece[i:]) for piece in ranked for i in _splits(piece, scores)]


def _splits(piece: str, scores: Mapping[str, float]) -> list[int]:
    """Where `piece` can be cut into two pieces."""
    return [i for i in range(1, len(piece)) if piece[:i] in scores and piece[i:] in scores]
