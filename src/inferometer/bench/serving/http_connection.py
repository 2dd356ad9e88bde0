"""A connection to one HTTP/1.1 server: a request at a time, its body read as it comes. On asyncio's streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from inferometer.errors import UserError, shown

_HEAD_BYTES: Final = 64 * 1024
_PIECE: Final = 64 * 1024


class HttpError(Exception):
    """What came is no HTTP, or ended too early."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: of `http://host:port/prefix`. headers: sent with every request."""

    host: str
    port: int
    secure: bool
    prefix: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, url: str, *, headers: Mapping[str, str] | None = None) -> Address:
        """Raises UserError for what is no URL of a server."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise UserError(f"--url {url}: {error}; give http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UserError(f"--url {url} is no address of a server; give http://HOST:PORT")
        secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"), headers or {})

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The bytes of a request, whole."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body or b"")


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks that end themselves."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def stays(self) -> bool:
        """Whether the server keeps the connection when the body has ended."""
        return self.headers.get("connection", "keep-alive").lower() != "close" and (self.chunked or "content-length" in self.headers)


def read_head(raw: bytes) -> Head:
    """A response's status line and headers. Raises HttpError for what is none."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdecimal() and len(status) == 3):
        raise HttpError(f"no HTTP response: {shown(first)}")
    pairs = (line.partition(":") for line in lines if ":" in line)
    return Head(int(status), {name.strip().lower(): value.strip() for name, _, value in pairs})


class Connection:
    """To one server; opened when it is first used, and again after a response that did not leave it in order."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._busy = False

    async def send(self, request: bytes) -> Head:
        """Sends a request and waits for the head of its response. The body must then be read, or the connection is opened anew.

        Raises OSError, HttpError or ssl.SSLError.
        """
        reused = self._writer is not None and not self._busy
        if not reused:
            await self._open()
        try:
            return await self._exchange(request)
        except (OSError, HttpError):
            # A server may close an idle connection at any time; only a fresh one tells whether it still answers.
            if not reused:
                raise
            await self._open()
            return await self._exchange(request)

    async def body(self, head: Head) -> AsyncGenerator[bytes, None]:
        """The body in pieces, as soon as they are there. Raises HttpError where it ends before its end."""
        assert self._reader is not None
        try:
            if head.chunked:
                while size := await self._chunk_size():
                    yield await self._exactly(size)
                    await self._exactly(2)
                while (await self._line()).strip():
                    pass  # trailers
            elif "content-length" in head.headers:
                left = _length(head.headers["content-length"])
                while left:
                    piece = await self._reader.read(min(left, _PIECE))
                    if not piece:
                        raise HttpError("the connection ended within a response")
                    left -= len(piece)
                    yield piece
            else:
                while piece := await self._reader.read(_PIECE):
                    yield piece
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise HttpError(f"no HTTP body: {error}") from error
        self._busy = not head.stays

    async def whole(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of a small request."""
        head = await self.send(self._address.request(method, path, body))
        return head.status, b"".join([piece async for piece in self.body(head)])

    def close(self) -> None:
        """Drops the connection, whatever is under way on it."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _open(self) -> None:
        self.close()
        where = self._address
        context = ssl.create_default_context() if where.secure else None
        self._reader, self._writer = await asyncio.open_connection(where.host, where.port, ssl=context, limit=_HEAD_BYTES)

    async def _exchange(self, request: bytes) -> Head:
        assert self._reader is not None
        assert self._writer is not None
        self._busy = True
        self._writer.write(request)
        await self._writer.drain()
        while True:
            try:
                raw = await self._reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise HttpError(
                    "the connection ended before a response" if isinstance(error, asyncio.IncompleteReadError) else str(error)
                ) from error
            head = read_head(raw[:-4])
            if head.status >= 200:  # else it is only on its way
                return head

    async def _chunk_size(self) -> int:
        line = (await self._line()).split(b";")[0].strip()
        if not line or any(digit not in b"0123456789abcdefABCDEF" for digit in line) or len(line) > 8:
            raise HttpError(f"no size of a chunk: {shown(line)}")
        return int(line, 16)

    async def _line(self) -> bytes:
        assert self._reader is not None
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise HttpError("the connection ended within a response")
        return line

    async def _exactly(self, size: int) -> bytes:
        assert self._reader is not None
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise HttpError("the connection ended within a response") from error


def _length(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise HttpError(f"no length of a body: {shown(text)}")
    return int(text)


async def fetch(address: Address, method: str, path: str, body: bytes | None = None, *, seconds: float) -> tuple[int, bytes]:
    """One small request on a connection of its own. Raises OSError, HttpError or TimeoutError."""
    connection = Connection(address)
    try:
        async with asyncio.timeout(seconds):
            return await connection.whole(method, path, body)
    finally:
        with suppress(OSError):
            connection.close()
