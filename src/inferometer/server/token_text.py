"""The text of one request's tokens as they arrive."""

from __future__ import annotations

from inferometer.schedule.completion import FinishReason
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.stop import StopMatcher
from inferometer.text.tokenizer import Tokenizer


class TokenText:
    """Turns token ids into pieces of text and watches for stop strings.

    keep_stop: whether a stop string is part of the text (text-generation-inference) or not (OpenAI). Where it is not, whatever may be
    the beginning of one is held back until it is known not to be. The pieces concatenate to the text.
    Without a tokenizer all text is "".
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: tuple[str, ...], *, keep_stop: bool) -> None:
        self._detokeniser = None if tokenizer is None else IncrementalDetokeniser(tokenizer)
        self._stops = StopMatcher(stop) if stop else None
        self._keep_stop = keep_stop

    def push(self, token_id: int, reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        """What the next token makes certain, and why the text ends here, if it does. reason: why the tokens end, if they do."""
        if self._detokeniser is None:
            return "", reason
        piece = self._detokeniser.push(token_id)
        if self._stops is None:
            return (piece, None) if reason is None else (piece + self._detokeniser.finish(), reason)
        piece, matched = self._stops.push(piece)
        if reason is not None and not matched:
            rest, matched = self._stops.push(self._detokeniser.finish())
            piece += rest if matched else rest + self._stops.flush()
        if matched:
            stop = self._stops.matched or ""
            return piece if self._keep_stop else piece.removesuffix(stop), "stop_sequence"
        return (piece + self._stops.flush() if self._keep_stop else piece), reason
