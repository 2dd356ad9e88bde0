"""One request on its way: what the engine has emitted for it, as text, for whoever answers it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from inferometer.schedule.completion import FinishReason, TopLogprobs
from inferometer.schedule.request import Request
from inferometer.server.failures import ApiError
from inferometer.server.messages import Extra
from inferometer.server.token_text import TokenText
from inferometer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A token with what it adds to the text. finish_reason: with the last one."""

    token_id: int
    text: str
    logprob: float
    special: bool
    top: TopLogprobs
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Times:
    """When a request got how far, by time.perf_counter; None: not yet. arrived: when the last token came from the engine, which the
    consumer may not have taken yet.
    """

    submitted: float
    started: float | None = None
    arrived: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class Generation:
    """A request that the engine has been sent, on the HTTP side.

    The engine's client calls `start`, `push`, `wake` and `fail`; one consumer reads `steps` or `whole`. Whoever made it calls `close`
    in the end, however it ended: a request that is not finished is then dropped by the engine.

    prompt_logprobs: once the first token is here, if they were asked for. cached_tokens: prompt tokens that the prefix cache had.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, *, keep_stop: bool, drop: Callable[[Generation], None]) -> None:
        self.request = request
        self.times = Times(time.perf_counter())
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.tokens: list[GeneratedToken] = []
        self.finish_reason: FinishReason | None = None
        self.closed = False
        self.on_turn: Callable[[Generation], None] | None = None
        self._text = TokenText(tokenizer, request.params.stop, keep_stop=keep_stop)
        self._tokenizer = tokenizer
        self._drop = drop
        self._arrived: list[tuple[int, float, Extra | None]] = []
        self._failure: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether its last token is here."""
        return self.finish_reason is not None

    @property
    def failed(self) -> bool:
        """Whether it ended without one."""
        return self._failure is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join([token.text for token in self.tokens])

    def start(self, cached_tokens: int, moment: float) -> None:
        """Its turn came at `moment` (time.perf_counter)."""
        if self.times.started is None:
            self.times.started = max(moment, self.times.submitted)
            self.cached_tokens = cached_tokens

    def push(self, token_id: int, logprob: float, extra: Extra | None) -> None:
        """Takes a token in; the consumer hears of it at `wake`."""
        self._arrived.append((token_id, logprob, extra))

    def fail(self, error: ApiError) -> None:
        """Ends it without a last token; what has come before is still read."""
        if self._failure is None and not self.finished:
            self._failure = error
        self.wake()

    def wake(self) -> None:
        """Lets the consumer go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def steps(self) -> AsyncIterator[list[GeneratedToken]]:
        """The tokens as they come, all of a step together, up to the last one. Raises ApiError where the request fails."""
        while not self.finished:
            if not self._arrived:
                if self._failure is not None:
                    raise self._failure
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                continue
            arrived, self._arrived = self._arrived, []
            yield self._take(arrived)

    async def whole(self) -> None:
        """Waits for the last token. Raises ApiError where the request fails."""
        async for _ in self.steps():
            pass

    def close(self) -> None:
        """Nobody wants anything of it any longer."""
        if not self.closed:
            self.closed = True
            self._drop(self)

    def _take(self, arrived: list[tuple[int, float, Extra | None]]) -> list[GeneratedToken]:
        now = time.perf_counter()
        taken = []
        for token_id, logprob, extra in arrived:
            reason = None
            top: TopLogprobs = ()
            if extra is not None:
                reason, top = extra.finish_reason, extra.top
                if extra.prompt_logprobs is not None:
                    self.prompt_logprobs = extra.prompt_logprobs
            text, reason = self._text.push(token_id, reason)
            special = self._tokenizer is not None and self._tokenizer.is_special(token_id)
            taken.append(GeneratedToken(token_id, text, logprob, special, top, reason))
            if reason is not None:
                self.finish_reason = reason
                break  # what came behind a stop string is not part of the answer
        if self.times.first_token is None:
            self.times.first_token = now
        self.times.last_token = now
        self.tokens += taken
        return taken


async def merged(generations: Sequence[Generation]) -> AsyncIterator[list[tuple[int, list[GeneratedToken]]]]:
    """The tokens of several requests as they come: for each step the places of those that got any, with their tokens.

    One that finishes is closed at once, so that it takes nothing from the others. Raises ApiError where any of them fails.
    """
    waited_for = dict(enumerate(generations))
    while waited_for:
        arrived = [(place, each) for place, each in waited_for.items() if each._arrived]
        if not arrived:
            for each in waited_for.values():
                if each._failure is not None:
                    raise each._failure
            waiter = asyncio.get_running_loop().create_future()
            for each in waited_for.values():
                each._waiter = waiter
            await waiter
            continue
        step = []
        for place, each in arrived:
            taken, each._arrived = each._arrived, []
            step.append((place, each._take(taken)))
            if each.finished:
                each.close()
                del waited_for[place]
        yield step
