"""The service: what every route has in common between a body that was read and tokens that come back."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TypeVar

from inferometer.errors import UserError
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SEEDS, SamplingParams
from inferometer.server.answers import encode
from inferometer.server.chat import Chat
from inferometer.server.engine_client import SILENCE_SECONDS, EngineClient
from inferometer.server.failures import ApiError, ClientGoneError, cut_off, draining, invalid, unhealthy, waited_too_long
from inferometer.server.generation import Generation
from inferometer.server.messages import Embed, Embedded, Ready
from inferometer.server.observer import Observer
from inferometer.server.permits import Permit, Permits
from inferometer.server.served_model import ServedModel
from inferometer.server.settings import ServerSettings
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.tokenizer import Tokenizer

T = TypeVar("T")

EMBEDDED_TOGETHER = 32
"""Texts that the engine is sent at a time."""

PROBE_SECONDS = 10.0
"""How long the one-token request may take that decides over health after a failure."""


class Service:
    """One model, served. Lives on the event loop.

    settings: with every length known. ready: what the engine's process loaded. chat: conversations as text. draining: the server is
    ending, and takes no more.
    """

    def __init__(self, settings: ServerSettings, model: ServedModel, ready: Ready, client: EngineClient, observer: Observer) -> None:
        self.settings = settings
        self.model = model
        self.ready = ready
        self.client = client
        self.observer = observer
        self.chat = Chat(model)
        self.permits = Permits(settings.max_concurrent_requests)
        self.draining = False
        self._ids = itertools.count()
        self._tokenisers = ThreadPoolExecutor(settings.validation_workers, thread_name_prefix="tokenise")

    @contextmanager
    def admitted(self, path: str) -> Iterator[Permit]:
        """One permit for a request of `path`, held until this is left, and its outcome counted if that is a failure.

        A route counts its success itself (`observer.succeeded`). Raises ApiError (429, 503).
        """
        self.observer.received(path)
        try:
            if self.draining:
                raise draining()
            if self.client.gone:
                raise unhealthy()
            with self.permits.take() as permit:
                yield permit
        except ApiError as error:
            self.observer.refused(error.kind)
            raise
        except (ClientGoneError, asyncio.CancelledError, GeneratorExit):
            self.observer.dropped()
            raise
        except BaseException:
            self.observer.refused("internal")
            raise

    async def tokenise(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, off the event loop. Raises ApiError for text that the tokenizer cannot take."""
        return await self._off_loop(lambda tokenizer: tokenizer.encode(text, special=special))

    async def tokenise_all(self, texts: Sequence[str]) -> list[list[int]]:
        """As `tokenise`, for several texts at once."""
        return await self._off_loop(lambda tokenizer: [tokenizer.encode(text) for text in texts])

    async def tokenise_made(self, make: Callable[[], str]) -> list[int]:
        """The ids of the text that `make` returns, without what the tokenizer puts around a text; both off the event loop.

        Raises ApiError as `tokenise` does, and whatever `make` raises that is no UserError.
        """
        return await self._off_loop(lambda tokenizer: tokenizer.encode(make(), special=False))

    async def spans(self, text: str, *, special: bool = True) -> list[tuple[int, int, int]]:
        """As `tokenise`, each id with the characters of the text that it stands for, from and up to."""
        return await self._off_loop(lambda tokenizer: tokenizer.spans(text, special=special))

    async def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds to those before, and last what is left; off the event loop."""

        def detokenised(tokenizer: Tokenizer) -> list[str]:
            text = IncrementalDetokeniser(tokenizer)
            return [*(text.push(token_id) for token_id in token_ids), text.finish()]

        return await self._off_loop(detokenised)

    async def tokens_json(self, text: str, *, special: bool) -> bytes:
        """The tokens of a text as a JSON list of {id, text, start, stop}; off the event loop, however many."""

        def written(tokenizer: Tokenizer) -> bytes:
            spans = tokenizer.spans(text, special=special)
            told = ({"id": token_id, "text": text[start:stop], "start": start, "stop": stop} for token_id, start, stop in spans)
            # One by one, as a long list is one call that lets no other thread run.
            return f"[{','.join([encode(each) for each in told])}]".encode()

        return await self._off_loop(written)

    def token_text(self, token_id: int) -> str:
        """The text of a token by itself, special tokens by their name."""
        tokenizer = self.model.tokenizer
        return "" if tokenizer is None else tokenizer.decode([token_id], skip_special=False)

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raises ApiError unless these can be a prompt of the model."""
        if not token_ids:
            raise invalid("the prompt has no tokens")
        vocabulary = self.model.spec.vocabulary
        if not 0 <= min(token_ids) <= max(token_ids) < vocabulary:
            raise invalid(f"the prompt has a token outside the model's vocabulary, 0 to {vocabulary - 1}")

    @asynccontextmanager
    async def generations(
        self, jobs: Sequence[tuple[Sequence[int], SamplingParams]], *, keep_stop: bool, model_logprobs: bool = False
    ) -> AsyncIterator[list[Generation]]:
        """Sends the engine a request for each prompt with its parameters; on leaving, whatever is not finished is dropped.

        Prompts and parameters must have been checked, and permits for all be held. A seed is drawn where none was given.
        model_logprobs: as a request has it.
        """
        made = [self._generation(prompt, params, keep_stop, model_logprobs) for prompt, params in jobs]
        timers = [
            asyncio.get_running_loop().call_later(self.settings.queue_seconds, self._give_up_waiting, generation) for generation in made
        ]
        self.client.submit(made)
        try:
            yield made
        finally:
            for timer, generation in zip(timers, made, strict=True):
                timer.cancel()
                generation.close()

    async def embed(self, rows: Sequence[Sequence[int]]) -> AsyncIterator[Embedded]:
        """The vectors of some texts, each of at least one token, some texts at a time and in order. Raises ApiError.

        In parts, so that a long list delays others by a part at most, and costs nothing more once its client has gone.
        """
        for start in range(0, len(rows), EMBEDDED_TOGETHER):
            part = rows[start : start + EMBEDDED_TOGETHER]
            try:
                async with asyncio.timeout(self.settings.queue_seconds):
                    embedded = await self.client.embed(Embed(next(self._ids), tuple(tuple(row) for row in part)))
            except TimeoutError:
                raise waited_too_long(self.settings.queue_seconds) from None
            yield embedded

    @property
    def batch_total_tokens(self) -> int:
        """Tokens that all running requests may hold together."""
        room = self.ready.pages * self.ready.page_size
        asked = self.settings.batch_total_tokens
        return room if asked is None else min(asked, room)

    @property
    def text_limit(self) -> int:
        """Most tokens of a prompt or, which may be fewer than the model has positions for, of a text to be embedded."""
        limit = self.ready.text_limit
        return self.settings.input_length if limit is None else min(limit, self.settings.input_length)

    def must_generate(self) -> None:
        """Raises ApiError where the model does not generate text."""
        if self.model.spec.encoder:
            raise invalid(f"{self.model.spec.name} is an encoder: it embeds text and does not generate any; use /v1/embeddings", "model")

    def must_embed(self) -> None:
        """Raises ApiError where the model does not embed text."""
        if not self.model.spec.encoder:
            raise invalid(f"{self.model.spec.name} is a decoder: it generates text and does not embed any", "model")

    async def check_health(self) -> None:
        """Raises ApiError (503) where the engine is dead or stuck, or the server is ending."""
        if self.draining:
            raise draining()
        client = self.client
        if client.gone or client.silent_seconds > SILENCE_SECONDS or client.stalled_seconds > self.settings.stall_seconds:
            raise unhealthy()
        if client.broken:
            await self._probe()

    def cut_off(self) -> None:
        """Ends every open request with an answer that says so, those too that have not reached the engine yet."""
        self.client.end_all(cut_off)

    def close(self) -> None:
        """Ends the threads."""
        self._tokenisers.shutdown(wait=False, cancel_futures=True)

    async def _probe(self) -> None:
        """A real request of one token, past the permits. Raises ApiError (503) unless it succeeds."""
        if self.model.spec.encoder:
            return  # the next embedding tells
        try:
            async with (
                asyncio.timeout(PROBE_SECONDS),
                self.generations([((0,), SamplingParams(max_new_tokens=1))], keep_stop=True) as probes,
            ):
                await probes[0].whole()
        except (ApiError, TimeoutError):
            raise unhealthy() from None

    async def _off_loop(self, work: Callable[[Tokenizer], T]) -> T:
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            raise invalid("the model has no tokenizer: it takes no text")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenisers, work, tokenizer)
        except UserError:
            raise invalid("the text is not valid Unicode: it holds half of a surrogate pair") from None

    def _generation(self, prompt: Sequence[int], params: SamplingParams, keep_stop: bool, model_logprobs: bool) -> Generation:
        if params.seed is None:
            params = replace(params, seed=secrets.randbelow(SEEDS))
        assert params.seed is not None
        request = Request(next(self._ids), tuple(prompt), params, params.seed, self.model.eos_token_ids, model_logprobs)
        return Generation(request, self.model.tokenizer, keep_stop=keep_stop, drop=self.client.drop)

    def _give_up_waiting(self, generation: Generation) -> None:
        if generation.times.started is None and not generation.finished:
            self.client.drop(generation)
            generation.fail(waited_too_long(self.settings.queue_seconds))
