"""Bounds on what a client may send and on how long it may take, over bare sockets."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer, dummy, until
from scraped import scrape

from tiny_models import tiny_model

BODY = b'{"inputs":"x","parameters":{"max_new_tokens":2}}'
HEAD = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)


LIMITS = ("--max-input-length", "3000", "--max-total-tokens", "4000", "--gpu-memory", "0.25", "--max-concurrent-requests", "32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose answers can be large enough to fill every buffer on the way."""
    return tiny_model(tmp_path_factory.mktemp("hasty"), "llama", max_position_embeddings=4096, eos_token_id=299)


@pytest.fixture(scope="module")
def hasty(model: Path) -> Iterator[RunningServer]:
    """A server of it with little patience and 32 permits."""
    with dummy(model, *LIMITS, "--client-seconds", "1", forked=True) as running:
        yield running


def large(tokens: int) -> bytes:
    """A request for a stream that begins with 200 kB for each of 32 choices."""
    repeated = {"prompt": [200] * 2500, "echo": True, "logprobs": 0}
    body = json.dumps({**repeated, "n": 32, "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Bare:
    """A bare connection that has sent some bytes."""

    def __init__(self, server: RunningServer, data: bytes = b"", buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(data)

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answer(self) -> tuple[int, Any]:
        """The whole answer, up to where the server closes its side: (status, JSON body); (0, None) for none at all."""
        data = b""
        while part := self.socket.recv(65536):
            data += part
        if not data:
            return 0, None
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body) if body else None


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n" + BODY,
        HEAD + b"X: " + b"a" * 3_000_000,
        HEAD + b"a" * 70_000 + b": x\r\n\r\n" + BODY,
        HEAD + b"".join(b"X%d: y\r\n" % n for n in range(20_000)) + b"\r\n" + BODY,
        b"GET /" + b"a" * 3_000_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        + b"".join(b"X%d: y\r\n" % n for n in range(20_000)),
    ],
    ids=["value", "endless value", "name", "count", "address", "trailers"],
)
def test_a_head_has_a_bound(hasty: RunningServer, sent: bytes) -> None:
    with Bare(hasty, sent) as client:
        status, error = client.answer()
    assert status == 431
    assert error == {"error": "The request's line and headers are larger than 65536 bytes", "error_type": "payload_too_large"}
    hasty.alive()


def test_a_head_within_the_bound_is_read(hasty: RunningServer) -> None:
    assert hasty.post("/generate", {"inputs": "x"}, {"X": "a" * 60_000}).status == 200


@pytest.mark.parametrize(
    "sent", [b"junk\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"CONNECT x:80 HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_is_refused_in_json(hasty: RunningServer, sent: bytes) -> None:
    with Bare(hasty, sent) as client:
        status, error = client.answer()
    assert (status, error["error_type"]) == (400, "validation")
    hasty.alive()


@pytest.mark.parametrize("length", [5, len(BODY) - 1])
def test_a_body_that_is_longer_than_its_length_is_answered_as_far_as_it_goes(hasty: RunningServer, length: int) -> None:
    """As of a client that counts characters and sends bytes."""
    head = HEAD.replace(b"%d" % len(BODY), b"%d" % length)
    with Bare(hasty, head + b"\r\n" + BODY) as short:
        assert short.answer() == (400, {"error": "The body is not valid JSON", "error_type": "validation"})


def test_what_follows_a_whole_request_does_not_cost_its_answer(hasty: RunningServer) -> None:
    with Bare(hasty, HEAD + b"\r\n" + BODY + b"nonsense\r\n\r\n") as followed:
        status, answer = followed.answer()
    assert status == 200
    assert isinstance(answer["generated_text"], str)
    until(lambda: scrape(hasty)["inferometer_permits_in_use"] == 0)


def test_who_does_not_finish_is_not_waited_for(hasty: RunningServer) -> None:
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    chunks = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"
    with ExitStack() as stack:
        nothing, line, head, body, openai, chunked, between = (
            stack.enter_context(Bare(hasty, sent))
            for sent in (b"", b"POST", HEAD, HEAD + b"\r\n" + BODY[:5], chat, chunks, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        )
        assert between.socket.recv(65536).startswith(b"HTTP/1.1 200 OK")
        between.socket.sendall(b"\r\n")  # which is allowed before a request, and is none
        assert nothing.answer() == (0, None)
        for client in (line, head):
            assert client.answer() == (408, {"error": "The request's head did not arrive in time", "error_type": "timeout"})
        for client in (body, chunked):
            assert client.answer() == (408, {"error": "The body did not arrive in time", "error_type": "timeout"})
        status, error = openai.answer()
        assert (status, error["error"]["message"]) == (408, "The body did not arrive in time")
        assert between.answer() == (0, None)
    hasty.alive()


def test_who_does_not_read_gives_the_permit_back(hasty: RunningServer) -> None:
    hasty.alive()
    with Bare(hasty, large(1000), buffer=4096):
        # Looked at from outside: another request might have the last permit just when this one needs all of them.
        until(lambda: scrape(hasty)["inferometer_permits_in_use"] == 32)
        until(lambda: scrape(hasty)["inferometer_permits_in_use"] == 0)
    hasty.alive()


def test_an_end_waits_neither_for_a_body_nor_for_a_reader(model: Path) -> None:
    with dummy(model, *LIMITS, "--drain-seconds", "1") as server, ExitStack() as clients:
        half = clients.enter_context(Bare(server, HEAD + b"\r\n" + BODY[:10]))
        clients.enter_context(Bare(server, large(1000), buffer=4096))
        until(lambda: scrape(server)["inferometer_permits_in_use"] == 32)
        until(lambda: scrape(server)["inferometer_emitted_tokens_total"] >= 32 * 2)  # and there is more to be written than it reads
        assert server.end() == 0
        assert half.answer() == (503, {"error": "The server is shutting down", "error_type": "overloaded"})
        server._reader.join()
        assert re.search(r"POST /v1/completions 200 (dropped|incomplete_generation)", server.log)
        assert "POST /generate 499 dropped" in server.log
        assert "Traceback" not in server.log


def test_an_upgrade_that_is_offered_is_passed_over(hasty: RunningServer) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    plain = hasty.post("/generate", {"inputs": "x"})
    assert hasty.post("/generate", {"inputs": "x"}, offer).json() == plain.json()
    assert hasty.get("/health", Connection="Upgrade", Upgrade="websocket").status == 200
    offered = HEAD + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n"
    for split in (0, 5, len(BODY)):
        with Bare(hasty, offered + BODY[:split]) as client:
            client.socket.sendall(BODY[split:])
            assert client.answer()[0] == 200
    hasty.alive()
