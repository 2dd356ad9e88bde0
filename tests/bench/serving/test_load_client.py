"""Loads on a server that is scripted: how many at a time, when, and what becomes of requests that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from scripted_server import END, STREAM, ScriptedServer, answer, chunk, stream

from inferometer.bench.serving.dialect import Dialect, OpenAIDialect, TgiDialect
from inferometer.bench.serving.http_connection import Address
from inferometer.bench.serving.load_client import LoadClient, Watched
from inferometer.bench.serving.served_request import ServedRequest

TGI = TgiDialect(4)
OPENAI = OpenAIDialect("m")


def token(place: int, *, last: bool = False, **details: Any) -> dict[str, Any]:
    return {
        "token": {"id": 1, "text": "a", "logprob": -1.0, "special": False},
        "generated_text": "aaa" if last else None,
        "details": {"finish_reason": "length", "generated_tokens": place, **details} if last else None,
    }


def completion(text: str = "a", usage: int | None = None, **more: Any) -> dict[str, Any]:
    counted = {} if usage is None else {"usage": {"prompt_tokens": 4, "completion_tokens": usage}}
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}], **counted, **more}


GOOD = stream(token(1), token(2), token(3, last=True), done=False)


def loaded(script: Any, *, dialect: Dialect = TGI, bodies: int = 6, seconds: float = 30.0, **load: Any) -> tuple[Watched, ScriptedServer]:
    async def run(url: str) -> Watched:
        client = LoadClient(Address.of(url), dialect, seconds=seconds)
        sent = [json.dumps({"place": place}).encode() for place in range(bodies)]
        if "rate_s" in load:
            return await client.poisson(sent, seed=0, advance=lambda count=1: None, **{"warmups": 0, **load})
        return await client.closed_loop(sent, advance=lambda count=1: None, **{"concurrency": 2, "warmups": 0, **load})

    with ScriptedServer(script) as server:
        return asyncio.run(run(server.url)), server


def one(pieces: Sequence[bytes | float | None], **more: Any) -> ServedRequest:
    watched, _ = loaded(lambda what, body, number: pieces, bodies=1, concurrency=1, **more)
    return watched.requests[0]


def test_so_many_at_a_time_and_never_more() -> None:
    watched, server = loaded(lambda what, body, number: [*GOOD[:2], 0.01, *GOOD[2:]], bodies=9, concurrency=3)
    assert server.most == 3
    assert server.connections == 3
    assert [each.failure for each in watched.requests] == [None] * 9
    assert sorted(body["place"] for _, body in server.seen) == list(range(9))
    assert {what for what, _ in server.seen} == {"POST /generate_stream"}


def test_the_warm_up_runs_at_the_measured_load_and_does_not_count() -> None:
    watched, server = loaded(lambda what, body, number: GOOD, bodies=8, concurrency=2, warmups=3)
    assert len(server.seen) == 8
    assert len(watched.requests) == 5
    assert watched.client.wall_s > 0


def test_arrivals_do_not_wait_for_answers() -> None:
    watched, server = loaded(lambda what, body, number: [0.3, *GOOD], bodies=8, rate_s=400.0)
    assert server.most >= 5
    assert len(watched.requests) == 8
    dues = [each.due_s for each in watched.requests]
    assert dues == sorted(dues)
    assert len({round(b - a, 9) for a, b in pairwise(dues)}) == 7
    assert all(each.sent_s >= each.due_s for each in watched.requests)


def test_a_stream_of_tgi() -> None:
    got = one(stream(token(1), token(2, last=True, input_length=4), done=False))
    assert (got.failure, sum(got.tokens or ()), got.total, got.prompt_tokens) == (None, 2, 2, 4)


def test_a_stream_of_openai_with_the_usage_in_every_chunk() -> None:
    end = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 4}}
    got = one(stream(completion(usage=1), completion(usage=3), completion("", usage=4), end), dialect=OPENAI)
    # However the network glued them together.
    assert (got.failure, sum(got.tokens or ()), got.total, got.prompt_tokens) == (None, 4, 4, 4)


def test_a_stream_of_openai_that_counts_only_at_its_end() -> None:
    end = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
    assert sum(one(stream(*[completion()] * 3, completion(""), end), dialect=OPENAI).tokens or ()) == 3
    glued = one(stream(*[completion()] * 2, completion(""), end), dialect=OPENAI)
    assert (glued.tokens, glued.total, glued.failure) == (None, 3, None)
    none = one(stream(completion(), completion("")), dialect=OPENAI)
    assert (none.tokens, none.total) == (None, None)


@pytest.mark.parametrize(
    ("pieces", "kind", "words"),
    [
        (answer({"error": "full", "error_type": "overloaded"}, 429), "http 429", "full"),
        (stream({"error": "lost", "error_type": "generation"}, done=False), "server", "generation: lost"),
        ([*GOOD[:2], END], "stream", "before its last event"),
        ([*GOOD[:2], None], "stream", "ended within a response"),
        ([None], "stream", "ended before a response"),
        ([STREAM, chunk(b"data: {oops\n\n"), END], "stream", "no JSON"),
        ([STREAM, chunk(b"data: [1]\n\n"), END], "stream", "no object"),
        ([STREAM, chunk(b"data: " + b"[" * 100_000 + b"\n\n"), END], "stream", "no JSON"),
        ([STREAM, chunk(b'data: {"x": 1}\n\n'), END], "stream", "without a token"),
        ([STREAM, 60.0], "timeout", "no end within 0.2 s"),
        ([b"junk\r\n\r\n"], "stream", "no HTTP response"),
    ],
)
def test_a_failure_is_of_its_kind_with_what_shows_it(pieces: Any, kind: str, words: str) -> None:
    failure = one(pieces, seconds=0.2 if kind == "timeout" else 30.0).failure
    assert failure is not None
    assert failure[0] == kind
    assert words in failure[1]


def test_an_openai_error_within_a_stream_and_a_stream_without_a_token() -> None:
    got = one(stream({"error": {"message": "engine died", "code": 500}}), dialect=OPENAI)
    assert got.failure == ("server", "engine died")
    assert one(stream(completion("")), dialect=OPENAI).failure == ("empty", "the stream ended without a token")
    assert one(stream({"object": "x"}), dialect=OPENAI).failure is not None


def test_one_that_fails_does_not_disturb_the_next() -> None:
    def script(what: str, body: Any, number: int) -> Any:
        return [STREAM, chunk(b"data: nonsense\n\n"), *GOOD[1:]] if body["place"] == 1 else GOOD

    watched, _ = loaded(script, bodies=4, concurrency=1)
    assert [each.failure is None for each in watched.requests] == [True, False, True, True]


def test_what_is_asked_in_both_dialects() -> None:
    assert TGI.body("x", 3) == {"inputs": "x", "parameters": {"max_new_tokens": 3, "details": True, "do_sample": False, "truncate": 4}}
    assert OPENAI.body([1, 2], 3) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 3, "temperature": 0, "ignore_eos": True, "min_tokens": 3, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    plain = OpenAIDialect("m", forces=False, counts=False).body("x", 3)
    assert "ignore_eos" not in plain
    assert plain["stream_options"] == {"include_usage": True}
