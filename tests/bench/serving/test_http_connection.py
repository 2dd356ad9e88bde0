"""HTTP/1.1 on asyncio's streams, against a server that says whatever it is told to."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import END, STREAM, ScriptedServer, answer, chunk

from inferometer.bench.serving.http_connection import Address, Connection, HttpError, fetch, read_head
from inferometer.errors import UserError


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://localhost:8080", "localhost", 8080, ""),
        ("localhost:8080/", "localhost", 8080, ""),
        ("http://[::1]:80/v1/", "::1", 80, "/v1"),
        ("https://example.org", "example.org", 443, ""),
    ],
)
def test_addresses(url: str, host: str, port: int, prefix: str) -> None:
    found = Address.of(url)
    assert (found.host, found.port, found.prefix, found.secure) == (host, port, prefix, url.startswith("https"))


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://a:b", "http://a:70000", "http://a?x=1", "http://[::1"])
def test_what_is_no_address_is_one_line(url: str) -> None:
    with pytest.raises(UserError, match="--url"):
        Address.of(url)


def test_a_request_is_whole_and_carries_its_headers() -> None:
    raw = Address.of("http://h:1/p", headers={"Authorization": "Bearer x"}).request("POST", "/q", b"{}")
    assert raw.startswith(b"POST /p/q HTTP/1.1\r\nHost: h:1\r\n")
    assert b"\r\nAuthorization: Bearer x\r\n" in raw
    assert raw.endswith(b"Content-Length: 2\r\n\r\n{}")


def whole(pieces: list[bytes], times: int = 1) -> tuple[list[tuple[int, bytes]], int]:
    """What comes back of so many requests on one connection, and how many connections that took."""

    async def run(url: str) -> list[tuple[int, bytes]]:
        with closing(Connection(Address.of(url))) as connection:
            return [await connection.whole("GET", "/") for _ in range(times)]

    with ScriptedServer(lambda what, body, number: pieces) as server:
        return asyncio.run(run(server.url)), server.connections


def test_a_body_of_a_known_length_leaves_the_connection_in_order() -> None:
    assert whole(answer({"a": 1}), times=3) == ([(200, b'{"a": 1}')] * 3, 1)


def test_a_chunked_body_with_extensions_and_trailers() -> None:
    body = [STREAM, b"3;x=y\r\nabc\r\n", chunk(b"de"), b"0\r\nX-Time: 1\r\n\r\n"]
    assert whole(body, times=2) == ([(200, b"abcde")] * 2, 1)


def test_a_body_that_ends_with_the_connection() -> None:
    assert whole([b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", None], times=2) == ([(200, b"abc")] * 2, 2)  # type: ignore[list-item]


def test_a_server_that_is_on_its_way_is_waited_for() -> None:
    assert whole([b"HTTP/1.1 100 Continue\r\n\r\n", *answer(1)])[0] == [(200, b"1")]


def test_a_kept_connection_that_the_server_has_closed_is_opened_anew() -> None:
    async def run(url: str) -> list[tuple[int, bytes]]:
        with closing(Connection(Address.of(url))) as connection:
            return [await connection.whole("GET", "/") for _ in range(2)]

    with ScriptedServer(lambda what, body, number: [*answer(number), *([None] if number == 1 else [])]) as server:
        assert asyncio.run(run(server.url)) == [(200, b"1"), (200, b"2")]
        assert server.connections == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [None],
        [b"HTTP/1.1 200", None],
        [b"nonsense\r\n\r\n"],
        [b"HTTP/1.1 2x0 OK\r\n\r\n"],
        [STREAM, b"zz\r\n"],
        [STREAM, b"-1\r\n"],
        [STREAM, b"5\r\nab", None],
        [STREAM, chunk(b"ab"), None],
        [STREAM, b"FFFFFFFFF\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nab", None],
        [b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000],
    ],
)
def test_what_is_no_http_is_told_and_never_waited_for(pieces: list[bytes]) -> None:
    with pytest.raises(HttpError):
        whole(pieces)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading_of_a_head(raw: bytes) -> None:
    try:
        head = read_head(raw)
    except HttpError:
        return
    assert 0 <= head.status <= 999


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.booleans())
def test_any_bytes_after_a_head_end_in_a_body_or_an_error(pieces: list[bytes], chunked: bool) -> None:
    """In a loop of its own, without a socket: asyncio's reader is fed by hand."""

    async def run() -> None:
        connection = Connection(Address.of("http://h"))
        connection._reader = asyncio.StreamReader(limit=2**16)
        for piece in pieces:
            connection._reader.feed_data(piece)
        connection._reader.feed_eof()
        head = read_head(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 30"))
        try:
            got = [piece async for piece in connection.body(head)]
        except HttpError:
            return
        assert chunked or sum(map(len, got)) == 30

    asyncio.run(run())


def test_nothing_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match="Errno 111"):
        asyncio.run(fetch(Address.of("http://127.0.0.1:1"), "GET", "/", seconds=5))


def test_a_silent_server_is_left_after_its_time() -> None:
    with ScriptedServer(lambda what, body, number: [60.0, END]) as server, pytest.raises(TimeoutError):
        asyncio.run(fetch(Address.of(server.url), "GET", "/", seconds=0.05))
