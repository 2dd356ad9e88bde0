"""The text of one sequence as its tokens arrive."""

from __future__ import annotations

from inferometer.schedule.completion import Completion, FinishReason, StreamedToken, TopLogprobs
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.stop import StopMatcher
from inferometer.text.tokenizer import Tokenizer


class TextStream:
    """Turns a request's emissions into text, watches for stop strings and gathers the completion.

    prompt: the request's place among its caller's. Without a tokenizer the text is "" throughout.
    """

    def __init__(self, request: Request, prompt: int, tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.prompt = prompt
        self._tokenizer = tokenizer
        self._detokeniser = None if tokenizer is None else IncrementalDetokeniser(tokenizer)
        self._stops = StopMatcher(request.params.stop) if request.params.stop else None
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._tops: list[TopLogprobs] = []
        self._prompt_logprobs: list[float | None] | None = None

    def push(self, emission: Emission) -> tuple[str, Completion | None]:
        """The text that the next token makes certain; with the completion, if the sequence ends here."""
        self._token_ids.append(emission.token_id)
        self._logprobs.append(emission.logprob)
        self._tops.append(emission.top)
        if emission.prompt_logprobs is not None:
            self._prompt_logprobs = list(emission.prompt_logprobs)
        piece, reason = self._text(emission)
        self._pieces.append(piece)
        return piece, None if reason is None else self._completion(reason)

    def streamed(self, emission: Emission, piece: str, completion: Completion | None) -> StreamedToken:
        """The token that was pushed last, and what came of it."""
        return StreamedToken(
            prompt=self.prompt,
            index=len(self._token_ids) - 1,
            token_id=emission.token_id,
            text=piece,
            logprob=emission.logprob,
            special=self._tokenizer is not None and self._tokenizer.is_special(emission.token_id),
            top_logprobs=emission.top,
            completion=completion,
        )

    def _completion(self, reason: FinishReason) -> Completion:
        params = self.request.params
        return Completion(
            prompt_token_ids=list(self.request.prompt_token_ids),
            token_ids=self._token_ids,
            text="".join(self._pieces),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            finish_reason=reason,
            top_logprobs=self._tops if params.top_logprobs else None,
            seed=self.request.seed if params.samples else None,
        )

    def _text(self, emission: Emission) -> tuple[str, FinishReason | None]:
        reason = emission.finish_reason
        if self._detokeniser is None:
            return "", reason
        piece = self._detokeniser.push(emission.token_id)
        if self._stops is None:
            return (piece, None) if reason is None else (piece + self._detokeniser.finish(), reason)
        piece, matched = self._stops.push(piece)
        if not matched and reason is not None:
            rest, matched = self._stops.push(self._detokeniser.finish())
            piece += rest if matched else rest + self._stops.flush()
        # A stop string that completes with the last permitted token, or an end token, is why the text ends there.
        return piece, "stop_sequence" if matched else reason
