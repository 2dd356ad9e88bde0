"""What happens in a server, told to whoever counts it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inferometer.server.failures import Kind
from inferometer.server.generation import Generation
from inferometer.server.messages import Step


class Observer:
    """Does nothing; to be overridden. Called on the event loop: every method must be quick and must not raise."""

    def received(self, path: str) -> None:
        """A request for a generation or an embedding has come; it ends with exactly one of `succeeded`, `refused` and `dropped`."""

    def validated(self, seconds: float, prompt_tokens: int, max_new_tokens: int) -> None:
        """Its parameters are in order and its prompt is tokenised."""

    def refused(self, kind: Kind) -> None:
        """It was refused or it failed."""

    def dropped(self) -> None:
        """Its client went away."""

    def succeeded(self, generations: Sequence[Generation]) -> None:
        """It was answered in full: one generation, or several for best_of and n; none for an embedding."""

    def step(self, step: Step, generations: Collection[Generation], now: float) -> None:
        """The engine has made a step, which came at `now` (time.perf_counter) and brought tokens for `generations`. Their
        `times.arrived` still says when the tokens before came.
        """

    def broken(self, *, prompts: bool) -> None:
        """A step has failed; prompts: one of its requests had no token yet."""


class Observers(Observer):
    """Tells several."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def received(self, path: str) -> None:
        """To all."""
        for each in self._observers:
            each.received(path)

    def validated(self, seconds: float, prompt_tokens: int, max_new_tokens: int) -> None:
        """To all."""
        for each in self._observers:
            each.validated(seconds, prompt_tokens, max_new_tokens)

    def refused(self, kind: Kind) -> None:
        """To all."""
        for each in self._observers:
            each.refused(kind)

    def dropped(self) -> None:
        """To all."""
        for each in self._observers:
            each.dropped()

    def succeeded(self, generations: Sequence[Generation]) -> None:
        """To all."""
        for each in self._observers:
            each.succeeded(generations)

    def step(self, step: Step, generations: Collection[Generation], now: float) -> None:
        """To all."""
        for each in self._observers:
            each.step(step, generations, now)

    def broken(self, *, prompts: bool) -> None:
        """To all."""
        for each in self._observers:
            each.broken(prompts=prompts)
