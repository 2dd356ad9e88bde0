"""One bad request never hurts another: what is refused, how, and that the server goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from running_server import RunningServer

MARKER = "Xylophone-4711"


def refusal(server: RunningServer, inputs: str = MARKER, **parameters: Any) -> str:
    """The message of a request that breaks a rule, the same on both routes."""
    body = {"inputs": inputs, "parameters": parameters}
    answer = server.post("/generate", body)
    assert answer.status == 422, answer.body
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"
    assert MARKER.encode() not in answer.body
    (event,) = server.post("/generate_stream", body).events() if parameters.get("best_of", 1) <= 1 else [answer.json()]
    assert event == answer.json()
    server.alive()
    message: str = answer.json()["error"]
    return message


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"best_of": 2}, "`best_of` > 1 needs sampling"),
        ({"best_of": 3, "do_sample": True}, "`best_of` must be at most 2, not 3"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set"),
        ({"best_of": 0}, "`best_of` must be at least 1"),
        ({"temperature": 0}, "`temperature` must be above 0"),
        ({"temperature": -1.5}, "`temperature` must be above 0"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be above 0"),
        ({"frequency_penalty": 2.1}, "`frequency_penalty` must be from -2 to 2"),
        ({"top_p": 0}, "`top_p`"),
        ({"top_p": 1.0}, "`top_p`"),
        ({"top_p": 1.1}, "`top_p`"),
        ({"top_p": -1}, "`top_p`"),
        ({"typical_p": 0.0}, "`typical_p`"),
        ({"typical_p": 1}, "`typical_p`"),
        ({"top_k": 0}, "`top_k`"),
        ({"top_k": -3}, "`top_k`"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be above 0"),
        ({"max_new_tokens": 2**32 - 1}, "must be at most 512, not 14 `inputs` tokens and 4294967295"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "`stop` supports up to 4 sequences, 5 were given"),
        ({"stop": [""]}, "`stop` has an empty sequence"),
        ({"truncate": 0}, "`truncate`"),
        ({"truncate": 257}, "`truncate` must be above 0 and at most 256, not 257"),
        ({"top_n_tokens": 21}, "`top_n_tokens` must be at most 20"),
        ({"grammar": {"type": "regex", "value": "["}}, "`grammar` is not supported"),
        ({"adapter_id": "x"}, "`adapter_id` is not supported"),
    ],
)
def test_a_broken_rule_is_named(server: RunningServer, parameters: dict[str, Any], said: str) -> None:
    assert said in refusal(server, **parameters)


@pytest.mark.parametrize(
    ("parameters", "first"),
    [
        ({"temperature": 0, "top_p": 5, "max_new_tokens": 0}, "`temperature`"),
        ({"repetition_penalty": -1, "top_k": 0}, "`repetition_penalty`"),
        ({"top_p": 1, "typical_p": 1}, "`top_p`"),
        ({"typical_p": 1, "top_k": 0}, "`typical_p`"),
        ({"top_k": 0, "max_new_tokens": 0}, "`top_k`"),
        ({"max_new_tokens": 0, "stop": ["a"] * 5}, "`max_new_tokens`"),
        ({"stop": ["a"] * 5, "truncate": 0}, "`stop`"),
        ({"best_of": 2, "temperature": 0}, "`temperature`"),
        ({"best_of": 3, "temperature": 0}, "`best_of`"),
    ],
)
def test_the_first_broken_rule_wins(server: RunningServer, parameters: dict[str, Any], first: str) -> None:
    assert refusal(server, **parameters).startswith(first)


GRAMMARS: list[Any] = [
    {"type": "regex", "value": "[a-z"},
    {"type": "regex", "value": "(a|b)*" * 2000},
    {"type": "json", "value": {}},
    {"type": "json", "value": {"$ref": "#"}},
    {"type": "json", "value": {"type": "object", "properties": {}}},
    {"type": "json", "value": {"allOf": [{"type": "string"}, {"type": "number"}]}},
    {"type": "nonsense"},
    {},
    "regex",
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: str(grammar)[:40])
def test_a_grammar_is_refused_whatever_it_is(server: RunningServer, grammar: Any) -> None:
    assert refusal(server, grammar=grammar) == "`grammar` is not supported by this server"


def test_an_empty_prompt(server: RunningServer) -> None:
    assert refusal(server, inputs="") == "`inputs` must not be empty"
    assert refusal(server, inputs="", truncate=0) == "`inputs` must not be empty"
    assert "generated_text" in server.generate("   \n")


def test_a_stream_has_one_sequence_and_no_prefill(server: RunningServer) -> None:
    for parameters in ({"best_of": 2, "do_sample": True}, {"decoder_input_details": True}):
        answer = server.post("/generate_stream", {"inputs": "x", "parameters": parameters})
        (event,) = answer.events()
        assert answer.status == 200
        assert event["error_type"] == "validation"
        assert "streaming" in event["error"]
    server.alive()


@pytest.mark.parametrize("over", [-2, -1, 0, 1, 2])
def test_limits_are_exact(server: RunningServer, over: int) -> None:
    prompt = server.post("/generate", {"inputs": "p" * (256 + over), "parameters": {"max_new_tokens": 1}})
    total = server.post("/generate", {"inputs": "p" * 200, "parameters": {"max_new_tokens": 312 + over}})
    assert prompt.status == total.status == (422 if over > 0 else 200)
    if over > 0:
        assert prompt.json()["error"] == f"`inputs` must have at most 256 tokens, not {256 + over}"
        assert f"200 `inputs` tokens and {312 + over} `max_new_tokens`" in total.json()["error"]
    # Too long for both: the total is looked at first.
    both = server.post("/generate", {"inputs": "p" * 600, "parameters": {"max_new_tokens": 1}})
    assert "`inputs` tokens + `max_new_tokens`" in both.json()["error"]
    assert server.generate("p" * 600, truncate=256, details=True, max_new_tokens=256)["details"]["generated_tokens"] == 256
    server.alive()


RAW = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"{",
    b'{"inputs": "x"',
    b"{'inputs': 'x'}",
    b'{"inputs": NaN}',
    b'{"inputs": "x", "parameters": {"temperature": NaN}}',
    b'{"inputs": "x", "parameters": {"temperature": Infinity}}',
    b'{"inputs": "x", "parameters": {"top_p": -Infinity}}',
    b'{"inputs": "x", "parameters": {"temperature": 1e999}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": "5"}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": 5.0}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": 5.5}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": -1}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": true}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": 4294967296}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": 9223372036854775808}}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": ' + b"9" * 5000 + b"}}",
    b'{"inputs": "x", "parameters": {"seed": -1}}',
    b'{"inputs": "x", "parameters": {"seed": 18446744073709551616}}',
    b'{"inputs": "x", "parameters": {"top_k": 2147483648}}',
    b'{"inputs": "x", "parameters": {"do_sample": "yes"}}',
    b'{"inputs": "x", "parameters": {"stop": "x"}}',
    b'{"inputs": "x", "parameters": {"stop": [1]}}',
    b'{"inputs": "x", "parameters": []}',
    b'{"inputs": 5}',
    b'{"inputs": null}',
    b'{"inputs": ["x"]}',
    b"{}",
    b'{"inputs": "\\ud800"}',
    b'{"inputs": "x", "parameters": {"stop": ["\\udfff"]}}',
    b'{"inputs": "\xff\xfe"}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"inputs": "x"}{"inputs": "x"}',
    b"\x00" * 100,
    b'{"inputs": "' + b"x" * 3_000_000 + b'"}',
]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (b"\\ud800", "lone surrogate"),
        (b"\\udfff tail", "lone surrogate"),
        (b"x\\ud83dx", "lone surrogate"),
        (b"\\ud83d\\u0041", "lone surrogate"),
        (b"\\ud83d\\n", "lone surrogate"),
        (b"\\u12", "not valid JSON"),
        (b"\xff", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
)
def test_text_that_is_none_is_told_as_what_it_is(server: RunningServer, inputs: bytes, said: str) -> None:
    answer = server.request("POST", "/generate", b'{"inputs": "' + inputs + b'"}', {"Content-Type": "application/json"})
    assert answer.status == 400
    assert said in answer.json()["error"]
    assert answer.json()["error_type"] == "validation"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"inputs": "x", "parameters": {}, "inputs": "y"}', "'inputs'"),
        (b'{"inputs": "x", "parameters": {"seed": 1, "best_of": 1, "seed": 2}}', "'seed'"),
        (b'{"inputs": "x", "parameters": {"seed": 1, "s\\u0065ed": 2}}', "'seed'"),
        (b'{"inputs": "x", "unknown": [{"deep": {"a": 1e999, "a": 1}}]}', "'a'"),
        (b'{"inputs": "x", "\xc3\xa9": 1, "\xc3\xa9": 1}', "'\\xe9'"),
        (b'{"inputs": "x", "inputs": 5}', "'inputs'"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/tokenize"])
def test_a_key_that_is_given_twice_is_named(server: RunningServer, path: str, body: bytes, key: str) -> None:
    answer = server.request("POST", path, body, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.json() == {"error": f"{key} is given twice in the body: give it once", "error_type": "validation"}
    server.alive()


def test_a_key_may_be_in_several_objects_and_numbers_may_be_long(server: RunningServer) -> None:
    body = b'{"inputs": "x", "unknown": [{"a": ' + b"9" * 4000 + b'}, {"a": {"a": 1}}], "parameters": {"max_new_tokens": 1}}'
    assert server.request("POST", "/generate", body, {"Content-Type": "application/json"}).status == 200


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations", "/tokenize"])
def test_whatever_is_sent_is_answered_in_the_error_shape(server: RunningServer, path: str) -> None:
    for body in RAW:
        answer = server.request("POST", path, body, {"Content-Type": "application/json"})
        if path == "/tokenize" and b'"inputs": "x"' in body and b"parameters" in body and answer.status == 200:
            continue
        assert 400 <= answer.status < 500, (body[:80], answer.status)
        assert set(answer.json()) == {"error", "error_type"}, body[:80]
    server.alive()


def test_what_is_unusual_and_right_is_served(server: RunningServer) -> None:
    for inputs in ("nul \x00 inside", "\U0001f600 \u0e01\u0e49 e\u0301", "\ud83d\ude00"):
        answer = server.request("POST", "/generate", json.dumps({"inputs": inputs}), {"Content-Type": "application/json; charset=utf-8"})
        assert answer.status == 200
    nothing = {"best_of": None, "temperature": None, "stop": None, "max_new_tokens": None, "seed": None, "unknown": {"deep": [1]}}
    assert server.post("/generate", {"inputs": "x", "parameters": nothing, "more": 1}).status == 200
    assert server.post("/generate", {"inputs": "x", "parameters": None}).status == 200
    assert server.post("/generate", {"inputs": "x", "parameters": {"top_p": 1e-9, "seed": 1}}).status == 200
    server.alive()


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_is_not_declared_to_be_json(server: RunningServer, media: str | None) -> None:
    answer = server.request("POST", "/generate", '{"inputs": "x"}', {} if media is None else {"Content-Type": media})
    assert answer.status == 415
    assert answer.json()["error_type"] == "unsupported_media_type"


def test_a_body_far_too_large(server: RunningServer) -> None:
    answer = server.request("POST", "/generate", b'{"inputs": "' + b"x" * 50_000_000 + b'"}', {"Content-Type": "application/json"})
    assert answer.status == 413
    assert answer.json()["error_type"] == "payload_too_large"
    server.alive()


def test_unknown_addresses_and_methods(server: RunningServer) -> None:
    assert (server.get("/nowhere").status, server.get("/nowhere").json()["error_type"]) == (404, "not_found")
    assert (server.get("/generate").status, server.get("/generate").json()["error_type"]) == (405, "method_not_allowed")
    assert server.get("/v1/nowhere").json() == {
        "error": {"message": "Not Found", "type": "invalid_request_error", "param": None, "code": None}
    }


def test_nothing_that_was_sent_is_logged(server: RunningServer) -> None:
    server.post("/generate", {"inputs": MARKER, "parameters": {"top_p": 3}})
    server.post("/generate", {"inputs": MARKER})
    server.request("POST", "/generate", f'{{"inputs": "{MARKER}', {"Content-Type": "application/json"})
    server.alive()
    assert MARKER not in server.log
