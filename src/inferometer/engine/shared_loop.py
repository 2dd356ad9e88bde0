"""One engine, driven by whoever waits for a token, for all who wait, in one thread or in several."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from inferometer.engine.engine import Engine
from inferometer.engine.text_stream import TextStream
from inferometer.engine.turns import Turns
from inferometer.schedule.completion import Completion
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request

if TYPE_CHECKING:
    from inferometer.text.tokenizer import Tokenizer

TextToken = tuple[TextStream, Emission, str, Completion | None]
"""A token with the text that it makes certain and, at the end, the completion."""


class SharedLoop:
    """Any number of iterators over one engine: each takes its steps for all of them, and tokens go to whoever they are for.

    turns: of threads, within which alone anybody touches the engine.
    """

    def __init__(self) -> None:
        self.turns = Turns()
        self._inboxes: dict[int, deque[Emission]] = {}  # of the requests that an iterator waits for: one an iterator

    def run(self, engine: Engine, requests: Sequence[Request], tokenizer: Tokenizer | None) -> Generator[TextToken, None, None]:
        """Every token of the requests as it comes. Closing the iterator drops what is unfinished.

        Raises RuntimeError if requests are dropped meanwhile, and whatever the engine's steps raise.
        """
        streams = {request.id: TextStream(request, place, tokenizer) for place, request in enumerate(requests)}
        inbox: deque[Emission] = deque()
        self._inboxes.update(dict.fromkeys(streams, inbox))
        try:
            with self.turns.asked(), self.turns.lock:
                sequences = {request.id: engine.add(request) for request in requests}
            while streams:
                while not inbox:
                    with self.turns.asked(), self.turns.lock:
                        if inbox:
                            break  # came while another thread had its turn
                        self._step(engine)
                        if not inbox and any(sequences[request_id].ended for request_id in streams):
                            raise RuntimeError("requests were dropped while they ran: the engine was cleared or closed, or a sweep failed")
                emission = inbox.popleft()
                stream = streams.get(emission.request_id)
                if stream is None:
                    continue  # came before its text ended at a stop string, while another iterator drove the engine
                piece, completion = stream.push(emission)
                if completion is not None:
                    self._drop(engine, emission.request_id)
                    del streams[emission.request_id]
                yield stream, emission, piece, completion
        finally:
            for request_id in streams:
                self._drop(engine, request_id)

    def _step(self, engine: Engine) -> None:
        for emission in engine.step():
            inbox = self._inboxes.get(emission.request_id)
            if inbox is not None:  # else its text has ended, or nobody wants it any longer
                inbox.append(emission)

    def _drop(self, engine: Engine, request_id: int) -> None:
        self._inboxes.pop(request_id, None)
        self.turns.soon(partial(engine.abort, request_id))
