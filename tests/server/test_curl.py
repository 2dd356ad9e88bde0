"""The server as curl sees it: streams, chunks, old versions of HTTP, and bytes that are no text."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer

JSON = ("-H", "Content-Type: application/json")
BODY: dict[str, Any] = {"inputs": "asked by curl", "parameters": {"max_new_tokens": 6, "details": True}}


class Curled:
    """What curl printed of a response. status: the last one, behind a 100 if there was any."""

    def __init__(self, output: bytes) -> None:
        blocks = output.split(b"\r\n\r\n")
        at = 1 if blocks[0].split()[1] == b"100" else 0
        lines = blocks[at].decode("latin-1").split("\r\n")
        self.continued = at == 1
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.body = b"\r\n\r\n".join(blocks[at + 1 :])

    def events(self) -> list[Any]:
        return [json.loads(line[5:]) for line in self.body.decode().splitlines() if line.startswith("data:")]


def curl(server: RunningServer, path: str, *arguments: str, body: bytes | None = None) -> Curled:
    """Runs curl, which must not fail. body: goes to its standard input."""
    command = ["curl", "--silent", "--show-error", "--include", "--max-time", "60", *arguments, server.url + path]
    done = subprocess.run(command, input=body, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return Curled(done.stdout)


def text(body: Any) -> bytes:
    return json.dumps(body).encode()


def test_a_whole_answer_and_a_stream_agree(server: RunningServer) -> None:
    whole = curl(server, "/generate", *JSON, "--data-binary", "@-", body=text(BODY))
    assert (whole.status, whole.headers["content-type"]) == (200, "application/json")
    stream = curl(server, "/generate_stream", "--no-buffer", *JSON, "--data-binary", "@-", body=text(BODY))
    assert stream.headers["transfer-encoding"] == "chunked"
    assert stream.events()[-1]["generated_text"] == json.loads(whole.body)["generated_text"]
    server.alive()


def test_a_body_in_chunks_and_one_that_waits_to_be_asked_for(server: RunningServer) -> None:
    whole = json.loads(curl(server, "/generate", *JSON, "--data-binary", "@-", body=text(BODY)).body)
    chunked = curl(server, "/generate", *JSON, "-H", "Transfer-Encoding: chunked", "--data-binary", "@-", body=text(BODY))
    assert json.loads(chunked.body) == whole
    asked = curl(server, "/generate", *JSON, "-H", "Expect: 100-continue", "--data-binary", "@-", body=text(BODY))
    assert asked.continued
    assert json.loads(asked.body) == whole
    # One that cannot be taken is not asked for.
    refused = curl(
        server, "/generate", "-H", "Content-Type: text/plain", "-H", "Expect: 100-continue", "--data-binary", "@-", body=text(BODY)
    )
    assert (refused.continued, refused.status) == (False, 415)
    server.alive()


def test_http_1_0_has_no_chunks(server: RunningServer) -> None:
    whole = curl(server, "/generate", "--http1.0", *JSON, "--data-binary", "@-", body=text(BODY))
    stream = curl(server, "/generate_stream", "--http1.0", *JSON, "--data-binary", "@-", body=text(BODY))
    assert stream.status == 200
    assert "transfer-encoding" not in stream.headers
    assert stream.headers["connection"] == "close"
    assert stream.body.endswith(b"}\n\n")
    assert stream.events()[-1]["generated_text"] == json.loads(whole.body)["generated_text"]
    # As it stands on the wire: curl would have taken chunks apart all the same.
    head = b"POST /generate_stream HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text(BODY))
    with socket.create_connection(("127.0.0.1", server.port), 60) as bare:
        bare.sendall(head + text(BODY))
        data = b"".join(iter(lambda: bare.recv(65536), b""))
    assert data.partition(b"\r\n\r\n")[2].startswith(b"data:")
    assert data.endswith(b"}\n\n")
    refused = curl(server, "/generate", "--http1.0", *JSON, "--data-binary", "@-", body=b"{")
    assert (refused.status, json.loads(refused.body)["error_type"]) == (400, "validation")
    server.alive()


@pytest.mark.parametrize("path", ["/health", "/ping", "/", "/info", "/metrics", "/docs", "/status", "/v1/models", "/api-doc/openapi.json"])
def test_what_can_be_read_can_be_asked_about(server: RunningServer, path: str) -> None:
    head = curl(server, path, "--head")
    read = curl(server, path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers.get("content-type") == read.headers.get("content-type")
    assert curl(server, "/generate", "--head").status == 405


@pytest.mark.parametrize(
    ("data", "arguments", "status"),
    [
        (b'{"inputs": "\xff\xfe"}', JSON, 400),
        (b"\x00\x01\x02", JSON, 400),
        (b"", JSON, 400),
        ('{"inputs": "x"}'.encode("utf-16"), JSON, 400),
        (b"inputs=x", (), 415),
        (b'{"inputs": "x"}', ("-H", "Content-Type:"), 415),
        (gzip.compress(b'{"inputs": "x"}'), (*JSON, "-H", "Content-Encoding: gzip"), 415),
        (b'{"inputs": "x"}', (*JSON, "-X", "PUT"), 405),
        (b'{"inputs": "x"}', (*JSON, "-X", "DELETE"), 405),
        (b'{"inputs": "x"}', (*JSON, "-X", "PATCH"), 405),
    ],
    ids=["bad utf-8", "bytes", "nothing", "utf-16", "form", "undeclared", "gzip", "PUT", "DELETE", "PATCH"],
)
def test_what_is_no_request_is_told_in_json(server: RunningServer, data: bytes, arguments: tuple[str, ...], status: int) -> None:
    answer = curl(server, "/generate", *arguments, "--data-binary", "@-", body=data)
    assert answer.status == status
    assert set(json.loads(answer.body)) == {"error", "error_type"}
    server.alive()


@pytest.mark.parametrize("path", ["/generate/", "/health/", "//generate", "/../generate", "/%2e%2e/etc/passwd", "/%00", "/v2/models"])
def test_other_addresses_are_not_found(server: RunningServer, path: str) -> None:
    answer = curl(server, path, "--path-as-is")
    assert (answer.status, json.loads(answer.body)) == (404, {"error": "Not Found", "error_type": "not_found"})


def test_a_body_from_a_file_and_two_requests_on_one_connection(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_bytes(text(BODY))
    url = f"{server.url}/generate"
    command = ["curl", "--silent", "--max-time", "60", *JSON, "--data-binary", f"@{file}", url, url, "--write-out", "\n%{num_connects}\n"]
    lines = subprocess.run(command, capture_output=True, timeout=90, check=True, text=True).stdout.split("\n")
    assert json.loads(lines[0]) == json.loads(lines[2])
    assert (lines[1], lines[3]) == ("1", "0")
    server.alive()
