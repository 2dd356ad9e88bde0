"""Stop strings, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.errors import UserError, shown


class StopMatcher:
    """Cuts a generated text right after the first stop string in it, for one sequence.

    A stop string is matched literally, anywhere: within a piece or across pieces. The first position of the text at which any
    stop string is complete decides; where several are complete there, the longest. So the outcome does not depend on how the
    text is cut into pieces. Text that may be the beginning of a stop string is held back until it is known not to be.
    Raises UserError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # A string is a sequence of strings too: a single stop string is meant, not one for each of its characters.
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise UserError(f"a stop string must be text of at least one character, not {shown(stop)}: remove it from stop")
        self._borders: list[list[int]] = [[] for _ in self._stops]  # as far as matches have come: a stop may be as long as a body
        self._progress = [0] * len(self._stops)
        self._given: list[str] = []
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, None so far."""
        return self._matched

    @property
    def text(self) -> str:
        """All text so far, what is held back included. Once a stop string has matched it ends with that string."""
        return "".join(self._given) + self._held

    def push(self, piece: str) -> tuple[str, bool]:
        """The text that may be given out now, and whether a stop string has matched.

        The text given out with a match ends with the whole of `matched`: no part of it was given out before. Text after a
        match is dropped.
        """
        if self._matched is not None:
            return "", True
        for i, character in enumerate(piece):
            complete = [stop for k, stop in enumerate(self._stops) if self._advance(k, character)]
            if complete:
                self._matched = max(complete, key=len)
                return self._give(self._held + piece[: i + 1], 0), True
        return self._give(self._held + piece, max(self._progress, default=0)), False

    def flush(self) -> str:
        """The text held back, once the last piece has come."""
        return self._give(self._held, 0)

    def _give(self, text: str, hold: int) -> str:
        cut = len(text) - hold
        self._held = text[cut:]
        self._given.append(text[:cut])
        return text[:cut]

    def _advance(self, k: int, character: str) -> bool:
        """Knuth-Morris-Pratt: keeps how much of stop string `k` the text ends with; True when all of it."""
        stop, borders, matched = self._stops[k], self._borders[k], self._progress[k]
        while matched and stop[matched] != character:
            matched = borders[matched - 1]
        matched += stop[matched] == character
        if matched > len(borders):
            borders.append(_border(stop, borders))
        self._progress[k] = matched
        return matched == len(stop)


def _border(stop: str, borders: Sequence[int]) -> int:
    """How long the longest proper prefix of the next prefix of `stop` is that is also its suffix; `borders` has it for the shorter ones."""
    end = len(borders)
    if not end:
        return 0
    length = borders[-1]
    while length and stop[end] != stop[length]:
        length = borders[length - 1]
    return length + (stop[end] == stop[length])
