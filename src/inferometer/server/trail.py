"""What is known of one HTTP request while it is served, for whoever counts, logs or traces it. No text of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal

from inferometer.server.failures import Kind
from inferometer.server.generation import Generation

Outcome = Literal["success", "dropped"] | Kind

OTHER_ROUTE: Final = "other"
"""The route of what no route knows: an address is text that a client chose."""


@dataclass(slots=True)
class Trail:
    """One request. Times by time.perf_counter, but for began_ns: nanoseconds since 1970. None: not yet, or not so.

    route: the address as the server knows it. received: it asks for a generation or an embedding. validation_s: what that took.
    prompt_tokens, max_new_tokens: of one that is in order. generations: of one that was answered in full.
    """

    method: str
    route: str = OTHER_ROUTE
    parent: tuple[str, str] = ("", "")
    request_id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.perf_counter)
    began_ns: int = field(default_factory=time.time_ns)
    ended: float | None = None
    status: int | None = None
    received: bool = False
    outcome: Outcome | None = None
    validation_s: float | None = None
    prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    generations: Sequence[Generation] = ()

    @property
    def generated_tokens(self) -> int:
        """Over all its sequences."""
        return sum([len(generation.tokens) for generation in self.generations])

    @property
    def seconds(self) -> float:
        """From its beginning to its end, or up to now."""
        return (self.ended or time.perf_counter()) - self.began

    @property
    def queue_s(self) -> float | None:
        """From the engine's being told to the first of its sequences having its turn."""
        waits = [each.times.started - each.times.submitted for each in self.generations if each.times.started is not None]
        return min(waits, default=None)

    @property
    def started(self) -> float | None:
        """When the first of its sequences had its turn."""
        return min([each.times.started for each in self.generations if each.times.started is not None], default=None)

    @property
    def first_token(self) -> float | None:
        """When the first token of all was here."""
        return min([each.times.first_token for each in self.generations if each.times.first_token is not None], default=None)

    @property
    def last_token(self) -> float | None:
        """When the last token of all was here."""
        return max([each.times.last_token for each in self.generations if each.times.last_token is not None], default=None)


CURRENT: Final[ContextVar[Trail | None]] = ContextVar("trail", default=None)
"""The request that the running task serves."""


def current() -> Trail:
    """The request that is being served; a new one where none is."""
    return CURRENT.get() or Trail("")
