"""Notes on every request's trail what becomes of it, and lets nobody count it twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from inferometer.server.failures import Kind
from inferometer.server.generation import Generation
from inferometer.server.messages import Step
from inferometer.server.observer import Observer
from inferometer.server.trail import Outcome, Trail, current

WORKING_PATHS: Final = frozenset(
    {"/", "/invocations", "/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"}
)
"""Where a POST asks for work of the engine."""

GONE: Final = 499
"""The status of an answer that nobody is left to read."""

_KINDS: Final[Mapping[int, Kind]] = MappingProxyType(
    {
        400: "validation",
        408: "timeout",
        413: "payload_too_large",
        415: "unsupported_media_type",
        422: "validation",
        424: "generation",
        429: "overloaded",
        500: "internal",
        503: "overloaded",
    }
)


class TrailKeeper(Observer):
    """Stands between those that tell what happens and `observer`, which hears of exactly one outcome for every request it hears of."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def answered(self, trail: Trail) -> None:
        """A response begins, with trail.status. One to a request that got no further than its body, or not even there, is counted here."""
        status = trail.status
        if trail.received or trail.method != "POST" or trail.route not in WORKING_PATHS or status is None:
            return
        if status == GONE:
            self.received(trail.route)
            self.dropped()
        elif status in _KINDS:
            self.received(trail.route)
            self.refused(_KINDS[status])

    def received(self, path: str) -> None:
        """Noted."""
        trail = current()
        if not trail.received:
            trail.received = True
            self._observer.received(path)

    def validated(self, seconds: float, prompt_tokens: int, max_new_tokens: int) -> None:
        """Noted."""
        trail = current()
        trail.validation_s, trail.prompt_tokens, trail.max_new_tokens = seconds, prompt_tokens, max_new_tokens
        self._observer.validated(seconds, prompt_tokens, max_new_tokens)

    def refused(self, kind: Kind) -> None:
        """Its outcome, unless it has one."""
        if self._ends(kind):
            self._observer.refused(kind)

    def dropped(self) -> None:
        """Its outcome, unless it has one."""
        if self._ends("dropped"):
            self._observer.dropped()

    def succeeded(self, generations: Sequence[Generation]) -> None:
        """Its outcome, unless it has one."""
        if self._ends("success"):
            current().generations = tuple(generations)
            self._observer.succeeded(generations)

    def step(self, step: Step, generations: Collection[Generation], now: float) -> None:
        """Passed on."""
        self._observer.step(step, generations, now)

    def broken(self, *, prompts: bool) -> None:
        """Passed on."""
        self._observer.broken(prompts=prompts)

    def _ends(self, outcome: Outcome) -> bool:
        trail = current()
        if trail.outcome is not None:
            return False
        trail.outcome = outcome
        return True
