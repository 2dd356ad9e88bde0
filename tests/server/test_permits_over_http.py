"""Nothing waits without a permit, every permit comes back, and who goes away stops costing."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from open_requests import Frozen, ask
from running_server import LIMITS, RunningServer, dummy, until
from scraped import Difference

LONG = {"inputs": "a long one", "parameters": {"max_new_tokens": 400}}
SHORT = {"inputs": "a short one", "parameters": {"max_new_tokens": 2}}


@pytest.fixture(scope="module")
def four(models: dict[str, Any]) -> Iterator[RunningServer]:
    """A server with four permits, of which two may run at a time."""
    with dummy(models["llama"], *LIMITS, "--max-concurrent-requests", "4", "--max-batch-size", "2", forked=True) as running:
        yield running


def full(server: RunningServer) -> bool:
    """Whether no permit is left."""
    return server.post("/generate", SHORT).status == 429


def test_the_fifth_is_refused_at_once_and_the_four_finish(four: RunningServer) -> None:
    four.alive()
    with Frozen(four):
        held = [ask(four, "/generate", SHORT) for _ in range(4)]
        time.sleep(0.3)  # they are on their way; nothing tells when all have come
        began = time.monotonic()
        refused = four.post("/generate", SHORT)
        assert time.monotonic() - began < 5
        assert (refused.status, refused.json()) == (429, {"error": "Model is overloaded", "error_type": "overloaded"})
        (event,) = four.post("/generate_stream", SHORT).events()
        assert event["error_type"] == "overloaded"
    assert [connection.getresponse().status for connection in held] == [200] * 4
    for connection in held:
        connection.close()
    four.alive()


def test_a_burst_gets_one_answer_each(four: RunningServer) -> None:
    with ThreadPoolExecutor(50) as pool:
        statuses = Counter(pool.map(lambda _: four.post("/generate", LONG).status, range(50)))
    assert set(statuses) <= {200, 429}
    assert statuses.total() == 50
    assert statuses[200] >= 4
    four.alive()


def test_best_of_needs_a_permit_for_each_sequence(four: RunningServer) -> None:
    best = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True, "max_new_tokens": 2}}
    with Frozen(four):
        held = [ask(four, "/generate", SHORT) for _ in range(3)]
        until(lambda: four.post("/generate", best).status == 429)
    assert [connection.getresponse().status for connection in held] == [200] * 3
    assert four.post("/generate", best).status == 200
    for connection in held:
        connection.close()


def test_a_request_that_is_refused_gives_its_permit_back(four: RunningServer) -> None:
    for _ in range(10):
        assert four.post("/generate", {"inputs": "x", "parameters": {"top_k": 0}}).status == 422
        assert four.post("/generate_stream", {"inputs": ""}).events()[0]["error_type"] == "validation"
    four.alive()


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_who_goes_away_gives_the_permit_back_running_or_queued(four: RunningServer, path: str) -> None:
    with Frozen(four):  # two of them would run, two wait
        gone = [ask(four, path, LONG) for _ in range(4)]
        until(lambda: full(four))
        for connection in gone:
            connection.close()
        until(lambda: not full_without_waiting(four))
    four.alive()


def full_without_waiting(server: RunningServer) -> bool:
    """As `full`, for a server whose engine stands still: a request that is let in is left alone."""
    connection = ask(server, "/generate_stream", SHORT)
    try:
        response = connection.getresponse()
        connection.sock.settimeout(0.5)
        try:
            return b"overloaded" in response.readline()
        except TimeoutError:
            return False
    finally:
        connection.close()


def test_a_stream_that_nobody_reads_on_ends(four: RunningServer) -> None:
    streams = [four.open_stream("/generate_stream", LONG) for _ in range(4)]
    for connection, response in streams:
        response.close()
        connection.close()
    until(lambda: not full(four))
    four.alive()


# As browsers and HTTP clients send what is not Latin-1: as UTF-8 bytes.
KEY = {"Authorization": "Bearer sésame".encode().decode("latin-1")}


@pytest.fixture(scope="module")
def guarded(models: dict[str, Any]) -> Iterator[RunningServer]:
    """A server of three permits that wants a key, may be called from pages of two origins, and lets nobody wait for long."""
    origins = ("--cors-allow-origin", "https://a.example", "--cors-allow-origin", "https://b.example")
    waiting = ("--max-batch-size", "1", "--queue-seconds", "0.5", "--max-concurrent-requests", "3")
    with dummy(models["llama"], *LIMITS, "--api-key", "sésame", *origins, *waiting, forked=True) as running:
        yield running


def test_a_wait_has_an_end(guarded: RunningServer) -> None:
    before = guarded.post("/generate", SHORT, KEY)
    assert before.status == 200
    with Frozen(guarded):
        held = [ask(guarded, "/generate", SHORT, KEY) for _ in range(3)]
        answers = [connection.getresponse() for connection in held]
        assert [answer.status for answer in answers] == [503] * 3
        assert json.loads(answers[0].read())["error_type"] == "overloaded"
    for connection in held:
        connection.close()
    after = guarded.post("/generate", SHORT, KEY)
    assert (after.status, after.body, guarded.get("/health").status) == (200, before.body, 200)


def test_the_key_opens_and_a_wrong_one_does_not(guarded: RunningServer) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s"}, {"Authorization": "Bearer"}):
        for path in ("/generate", "/generate_stream", "/", "/v1/completions"):
            answer = guarded.post(path, SHORT, headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.post("/generate", SHORT).json() == {
        "error": "The API key is missing or wrong",
        "error_type": "authentication",
    }
    assert guarded.post("/generate", SHORT, KEY).status == 200
    for path in ("/health", "/ping", "/", "/info", "/docs"):
        assert guarded.get(path).status == 200


def test_a_request_without_the_key_is_counted_under_the_route_that_it_asked_for(guarded: RunningServer) -> None:
    moved = Difference(guarded)
    reads, posts = ["/v1/models", "/v1/models/one/two"], ["/tokenize", "/info", "/generate", "/v1/embeddings"]
    assert [guarded.get(path).status for path in [*reads, "/v1/nothing"]] == [401] * 3
    assert [guarded.post(path, {}).status for path in posts] == [401] * 4
    moved.look()
    for route in ("/v1/models", "/v1/models/{model_id:path}", *posts, "other"):
        assert moved(f'inferometer_http_responses_total{{route="{route}",status="401"}}') == 1
    moved = Difference(guarded)
    assert guarded.get("/v1/models/one/two", **KEY).status == 404
    moved.look()
    assert moved('inferometer_http_responses_total{route="/v1/models/{model_id:path}",status="404"}') == 1


def test_browsers_may_call_from_where_they_are_allowed_to(four: RunningServer, guarded: RunningServer) -> None:
    asking = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    allowed = four.request("OPTIONS", "/generate", headers=asking)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "*")
    assert four.post("/generate", {"inputs": ""}, {"Origin": "https://a.example"}).headers["access-control-allow-origin"] == "*"
    openais = {**asking, "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang,x-stainless-os"}
    assert four.request("OPTIONS", "/v1/chat/completions", headers=openais).status == 200
    assert guarded.request("OPTIONS", "/generate", headers=asking).headers["access-control-allow-origin"] == "https://a.example"
    assert guarded.request("OPTIONS", "/generate", headers={**asking, "Origin": "https://c.example"}).status == 400
