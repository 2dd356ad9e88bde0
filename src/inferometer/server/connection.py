"""One client's connection: uvicorn's protocol, with bounds on what a client may send and on how long it may take over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from inferometer.server.answers import encode
from inferometer.server.failures import ApiError, Kind, body_of, draining

HEAD_BYTES: Final = 65536
"""Most bytes of a request's line and headers together."""

LINGER_SECONDS: Final = 2.0
"""How long a client that was refused gets to read why, before its connection goes."""


class _UntilTheEnd(int):
    """The length of a body that ends with its connection, as uvicorn counts lengths down: there is always some left, and none is missed."""

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _UntilTheEnd:
        return self

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class Connection(HttpToolsProtocol):
    """A connection. patience: seconds that a request's head may take to arrive, and its body, and that a client may leave what it is
    sent unread.

    A client that is out of time for sending is told so where nothing was answered yet. One that does not read is cut off: whatever it
    asked for is dropped, and its permit is free.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
        self._in_head = False
        self._upgrading = False
        self._head_bytes = 0
        self._raw_bytes = 0
        self._sending: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._refused = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here, and is to say what it wants."""
        super().connection_made(transport)
        self._wait_for(self._no_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._arrived()
        self._read_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of several."""
        if self._refused:
            return
        self._raw_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._refused or self.transport.is_closing():
            return
        if self._in_head and self._raw_bytes > HEAD_BYTES:
            self._refuse_head()  # the parser gathers a header until it is whole, however long that takes
        elif self._sending is None and not self._busy:
            self._wait_for(self._no_head)  # the time between requests is over

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent to."""
        super().pause_writing()
        self._reading = self.loop.call_later(self._patience, self._unread)

    def resume_writing(self) -> None:
        """It has read on."""
        self._read_on()
        super().resume_writing()

    # What the server calls.

    def shutdown(self) -> None:
        """It is ending: a body that has not come yet is waited for no longer."""
        if self._sending is not None and self._busy:
            told = draining()
            self._refuse(told.status, told.kind, told.message)
        else:
            super().shutdown()

    def cut_off(self) -> None:
        """It ends now: whatever is still unread or unsent is lost."""
        self.transport.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes, self._raw_bytes = True, 0, 0
        if self._sending is None:
            self._wait_for(self._no_head)

    def on_url(self, url: bytes) -> None:
        """A piece of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind a body."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._in_head = False
        self._upgrading = self.parser.should_upgrade()
        if self._upgrading:
            return
        self._wait_for(self._no_body)
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            # Which knows no chunks: a stream ends with the connection, which such a request has for itself.
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _UntilTheEnd()
        if self.pipeline:
            self._arrived()  # nothing is read until the requests before are answered

    def on_message_complete(self) -> None:
        """A body is whole."""
        if not self._upgrading:
            self._arrived()
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._pass_over_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self._refuse(400, "validation", "The request is not valid HTTP/1.1")

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """Reads the request again as one that asks for no other protocol. Java's client offers HTTP/2 with every request, and the
        parser takes the body of such a one for the other protocol's.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "validation", "The server is no proxy")
            return
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"http2-settings", b"connection")]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            kept.append((b"connection", b"close"))
        version = self.parser.get_http_version().encode("ascii")
        lines = [method + b" " + self.url + b" HTTP/" + version, *[name + b": " + value for name, value in kept]]
        self.parser = HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    @property
    def _busy(self) -> bool:
        """Whether a request is here that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head()
            raise HttpParserError("the head is too large")

    def _wait_for(self, or_else: Callable[[], None]) -> None:
        self._arrived()
        self._sending = self.loop.call_later(self._patience, or_else)

    def _arrived(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _read_on(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _no_head(self) -> None:
        self._sending = None
        if self._in_head:
            self._refuse(408, "timeout", "The request's head did not arrive in time")
        elif not self._busy:
            self.transport.close()

    def _no_body(self) -> None:
        self._sending = None
        self._refuse(408, "timeout", "The body did not arrive in time")

    def _unread(self) -> None:
        self._reading = None
        self.transport.abort()

    def _refuse_head(self) -> None:
        self._refuse(431, "payload_too_large", f"The request's line and headers are larger than {HEAD_BYTES} bytes")

    def _refuse(self, status: int, kind: Kind, message: str) -> None:
        """Answers for the application, which never sees the rest of the request, and lets the connection go."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._arrived()
        if self._busy:
            if self._in_head and not self.pipeline:
                # Of another request than the one that is under way, as a body is that is longer than its length says: that one is whole,
                # and its answer is the last.
                self.cycle.keep_alive = False
                return
            if self.pipeline or self.cycle.response_started:
                self.transport.abort()  # the answer before is not complete: there is no place for this one
                return
            self.cycle.disconnected = True  # the application has been reading this one's body
            self.cycle.message_event.set()
        path = self.url.decode("latin-1") if self.scope is not None else "/"
        body = encode(body_of(ApiError(status, kind, message), path)).encode("utf-8")
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        # Closed at once, with bytes of the client's still unread, the connection would be reset before the client has read this.
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def connections(patience: float) -> type[asyncio.Protocol]:
    """What uvicorn makes a connection with. patience: seconds, as of `Connection`."""
    return cast(type[asyncio.Protocol], partial(Connection, patience=patience))
