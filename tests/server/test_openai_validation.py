"""One bad request to OpenAI's routes never hurts another: what is refused, how, and that the server goes on."""

from __future__ import annotations

from typing import Any

import pytest
from running_server import RunningServer

MARKER = "Xylophone-4711"
CHAT = [{"role": "user", "content": MARKER}]
BODIES: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": MARKER}, "/v1/chat/completions": {"messages": CHAT}}


def refusal(server: RunningServer, path: str, **fields: Any) -> dict[str, Any]:
    """The error of a request that breaks a rule, the same for a stream."""
    body = {**BODIES[path], **fields}
    answer = server.post(path, body)
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert MARKER.encode() not in answer.body
    if "stream" not in fields and "stream_options" not in fields:
        assert server.post(path, {**body, "stream": True}).json() == answer.json()
    server.alive()
    return error


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0),
        ("typical_p", 0),
        ("top_k", -2),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 1.5),
        ("n", 2**64),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", 2**63),
        ("max_tokens", 2**70),
        ("min_tokens", -1),
        ("min_tokens", 2**63),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", ""),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", [5] * 600_000),
        ("seed", "x"),
        ("seed", 2**64),
        ("seed", 1.5),
        ("logit_bias", {"300": 1}),
        ("logit_bias", {"999999999": 1}),
        ("logit_bias", {"AI": -100}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"": 5}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": True}),
        ("logit_bias", [5]),
        ("logit_bias", {MARKER: 1}),
        ("logit_bias", {str(n): 1 for n in range(4097)}),
        ("stop_token_ids", [5] * 4097),
        ("stop_token_ids", [5] * 600_000),
        ("stop_token_ids", [300]),
        ("stop_token_ids", [-1]),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "json_object"}),
        ("suffix", "behind"),
    ],
)
def test_a_broken_rule_is_named(chat_server: RunningServer, path: str, param: str, value: Any) -> None:
    if path == "/v1/chat/completions" and (param, value) == ("max_tokens", -1):
        assert refusal(chat_server, path, max_tokens=0)["param"] == "max_tokens"
    error = refusal(chat_server, path, **{param: value})
    if param not in ("max_tokens", "min_tokens") or (isinstance(value, int) and value < 0):
        assert str(error["param"]).partition(".")[0] == param
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5] * 300_000}, "prompt"),
        ({"prompt": ["x", 1]}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [[1], [None]]}, "prompt"),
        ({"prompt": [300]}, None),
        ({"prompt": [-1]}, None),
        ({"prompt": [2**70]}, None),
        ({"prompt": [5] * 600_000, "echo": True}, "prompt"),
        ({"prompt": "x" * 1_900_000, "echo": True}, "prompt"),
        ({"prompt": "\ud800"}, None),
        ({"prompt": ["x"] * 200}, "n"),
        ({"n": 128, "prompt": ["x", "y"]}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)
def test_a_broken_rule_of_completions(chat_server: RunningServer, fields: dict[str, Any], param: str | None) -> None:
    error = refusal(chat_server, "/v1/completions", **fields)
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [None]}, "messages"),
        ({"messages": [5] * 400_000}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": -5, "max_tokens": 5}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
    ],
)
def test_a_broken_rule_of_chats(chat_server: RunningServer, fields: dict[str, Any], param: str | None) -> None:
    error = refusal(chat_server, "/v1/chat/completions", **fields)
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize("over", [-2, -1, 0, 1, 2])
def test_limits_are_exact(chat_server: RunningServer, over: int) -> None:
    prompt = chat_server.post("/v1/completions", {"prompt": [5] * (256 + over), "max_tokens": 1})
    total = chat_server.post("/v1/completions", {"prompt": [5] * 200, "max_tokens": 312 + over})
    chat = chat_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * (237 + over)}], "max_tokens": 1})
    assert prompt.status == total.status == chat.status == (400 if over > 0 else 200)
    if over > 0:
        for answer in (prompt, total, chat):
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert prompt.json()["error"]["message"] == f"`prompt` must have at most 256 tokens, not {256 + over}"
        assert f"not 200 and {312 + over}" in total.json()["error"]["message"]
    chat_server.alive()


RAW = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"{",
    b'{"prompt": "x"',
    b"{'prompt': 'x'}",
    b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "temperature": Infinity}',
    b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "top_p": 1e999}',
    b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": NaN}}',
    b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n": 1' + b"0" * 5000 + b"}",
    b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"prompt": "\xff", "messages": [{"role": "user", "content": "\xff"}]}',
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
def test_whatever_else_is_sent_is_refused_in_json(chat_server: RunningServer, path: str) -> None:
    for raw in RAW:
        answer = chat_server.request("POST", path, raw, {"Content-Type": "application/json"})
        assert answer.status == 400, raw[:80]
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    for status, headers, raw in ((415, {}, b"{}"), (415, {"Content-Type": "text/plain"}, b"{}"), (413, None, b" " * 2_000_001)):
        answer = chat_server.request("POST", path, raw, {"Content-Type": "application/json"} if headers is None else headers)
        assert answer.status == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert chat_server.get(path).status == 405
    assert chat_server.post(f"{path}/other", {}).json()["error"]["type"] == "invalid_request_error"
    chat_server.alive()


def test_a_nul_and_what_is_unknown_are_no_reason_to_refuse(chat_server: RunningServer) -> None:
    assert chat_server.post("/v1/completions", {"prompt": "a\x00b", "unknown": {"a": [1]}, "best_of": None}).status == 200
    assert chat_server.post("/v1/completions", {"prompt": "  \n"}).status == 200
    for value in (1e-300, 1e-45, 0, 2, None):
        assert chat_server.post("/v1/completions", {"prompt": "x", "temperature": value, "top_p": 1.0}).status == 200
    for value in (0, 1e-9, 0.5, 0.999, 1.0, 1, None):
        assert chat_server.post("/v1/completions", {"prompt": "x", "top_p": value}).status == 200
    chat_server.alive()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (None, "number 1 is null"),
        (3, "number 1 is a number"),
        ({"role": None, "content": "x"}, "that of number 1 is null"),
        ({"role": "", "content": "x"}, "that of number 1 is an empty text"),
        ({"role": ["user"], "content": "x"}, "that of number 1 is a list"),
        ({"role": "user", "content": None}, "that of number 1 is null"),
        ({"role": "user", "content": [None]}, "that of number 1 is another"),
    ],
)
def test_a_message_that_is_none_is_described_in_the_words_of_json(chat_server: RunningServer, message: Any, said: str) -> None:
    answer = chat_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}, message], "max_tokens": 1})
    assert answer.status == 400
    told = answer.json()["error"]["message"]
    assert said in told
    assert "None" not in told
