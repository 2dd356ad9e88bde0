"""Server-sent events, read from bytes as they come: whatever the pieces are that the network makes of them."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

# Of one event. What no token's event comes near, and a server that never ends a line must not fill the memory with.
_LONGEST: Final = 16 * 2**20


class StreamError(Exception):
    """A stream that is no stream of events; the message says why."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. kind: "message" unless the stream named another."""

    data: str
    kind: str = "message"


class EventParser:
    """Takes the bytes of a text/event-stream (WHATWG HTML, 9.2.6) and gives its events.

    Lines end with LF, CR or CRLF; a blank one ends an event; data lines of one event are joined by line feeds; comments, ids, retry times
    and fields that nobody knows are passed over, as are events without data. What is not UTF-8 becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._data: list[str] = []
        self._kind = ""
        self._size = 0
        self._first = True
        self._after_return = False

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes. Raises StreamError for one that is too large to be one."""
        text = self._decoder.decode(piece)
        if text and self._first:
            self._first = False
            text = text.removeprefix("\ufeff")
        # The LF of a CRLF may come with the next piece; it ends nothing then.
        if text and self._after_return:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events = []
        for line in lines:
            whole, self._line = self._line + line, ""
            event = self._take(whole)
            if event is not None:
                events.append(event)
        self._line += rest
        self._size += len(rest)
        if self._size > _LONGEST:
            raise StreamError(f"an event of more than {_LONGEST} characters")
        return events

    @property
    def idle(self) -> bool:
        """Whether nothing of an event has come since the last one ended."""
        return not self._line and not self._data

    def _take(self, line: str) -> Event | None:
        if not line:
            data, kind = self._data, self._kind
            self._data, self._kind, self._size = [], "", 0
            return Event("\n".join(data), kind or "message") if data else None
        self._size += len(line)
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._kind = value
        return None
