"""Text over HTTP, from a model that says what is written for it: halves of characters, stops anywhere, ends at the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import END, scripted, served
from running_server import LIMITS, RunningServer

MANY = "aé漢👋bcde\u0301fgħhZ"
"""Of two, three and four bytes, and a combining mark."""
MARKS = "<|x>.*[!"
REST = "\ufffd"
"""The end token, which the tokenizer knows nothing of."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("scripted")
    scripted(folder, MANY, "\n\n", MARKS, "0123456789")
    with served(folder, *LIMITS, "--tokenizer", "byte") as running:
        yield running


def whole(server: RunningServer, inputs: str, **parameters: Any) -> tuple[str, str, list[str]]:
    """(text, reason, texts of the tokens) of the native route, the same whole and as a stream."""
    parameters = {"max_new_tokens": 60, "details": True, **parameters}
    answer = server.generate(inputs, **parameters)
    tokens = [token["text"] for token in answer["details"]["tokens"]]
    events = server.stream(inputs, **parameters)
    assert [event["token"] for event in events] == answer["details"]["tokens"]
    assert events[-1]["generated_text"] == answer["generated_text"] == "".join(tokens)
    assert events[-1]["details"]["finish_reason"] == answer["details"]["finish_reason"]
    assert events[-1]["details"]["generated_tokens"] == answer["details"]["generated_tokens"] == len(tokens)
    return answer["generated_text"], answer["details"]["finish_reason"], tokens


def openai(server: RunningServer, prompt: str, **fields: Any) -> tuple[str, str, list[str]]:
    """(text, reason, pieces) of OpenAI's route, the same whole and as a stream."""
    body = {"prompt": prompt, "max_tokens": 60, "temperature": 0, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    (choice,) = answer.json()["choices"]
    *chunks, done = server.post("/v1/completions", {**body, "stream": True}).events()
    assert done == "[DONE]"
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(pieces) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice["text"], choice["finish_reason"], pieces


def test_no_character_arrives_in_halves(server: RunningServer) -> None:
    for place, character in enumerate(MANY[:-1]):
        expected = MANY[place + 1 :]
        text, reason, tokens = whole(server, f"some text {character}")
        assert (text, reason) == (expected + REST, "eos_token")
        assert [token for token in tokens if token] == list(text)
        assert len(tokens) == len(expected.encode()) + 1
        text, reason, pieces = openai(server, f"some text {character}")
        assert (text, reason) == (expected + REST, "stop")
        assert "\ufffd" not in "".join(pieces)[:-1]
    server.alive()


def test_a_character_cut_off_by_the_limit_is_one_replacement(server: RunningServer) -> None:
    data = MANY[1:].encode()
    for limit in range(1, len(data) + 1):
        expected = data[:limit].decode("utf-8", "replace")
        text, reason, _ = whole(server, "a", max_new_tokens=limit)
        assert (text, reason) == (expected, "length")
        assert openai(server, "a", max_tokens=limit)[:2] == (expected, "length")
    server.alive()


def test_every_stop_is_found_wherever_it_stands(server: RunningServer) -> None:
    text = MANY[1:]
    for start in range(0, len(text), 2):
        for end in range(start + 1, min(start + 4, len(text)) + 1):
            stop = text[start:end]
            assert whole(server, "a", stop=[stop])[:2] == (text[:end], "stop_sequence")
            cut, reason, pieces = openai(server, "a", stop=[stop])
            assert (cut, reason) == (text[:start], "stop")
            assert not any(character in "".join(pieces) for character in stop)
    server.alive()


@pytest.mark.parametrize(
    ("prompt", "stops", "end"),
    [
        ("x\n", ["\n"], "\n"),
        ("x\n", ["\n\n"], "\n\n"),
        ("x\n", ["\n\n\n", "\n\n"], "\n\n"),
        ("<", [".*"], "|x>.*"),
        ("<", ["[!"], "|x>.*[!"),
        ("<", [".+", "\\*", "(", "*["], "|x>.*["),
        ("<", ["|x>"], "|x>"),
        ("a", ["👋", "🌍"], "é漢👋"),
        ("a", ["\u0301"], "é漢👋bcde\u0301"),
        ("a", ["e\u0301"], "é漢👋bcde\u0301"),
        ("0", ["45", "345", "2345", "12345"], "12345"),
        ("0", ["8"], "12345678"),
        ("0", ["12", "1"], "1"),
    ],
)
def test_stops_are_taken_literally(server: RunningServer, prompt: str, stops: list[str], end: str) -> None:
    assert whole(server, prompt, stop=stops)[:2] == (end, "stop_sequence")
    text, reason, _ = openai(server, prompt, stop=stops)
    assert reason == "stop"
    assert any(text + stop == end for stop in stops)
    server.alive()


def test_what_only_begins_like_a_stop_is_not_lost(server: RunningServer) -> None:
    for stop in ("12x", "89x", "9" + REST + "x", "123456789" + REST + "0", "é" * 3):
        assert whole(server, "0", stop=[stop])[:2] == ("123456789" + REST, "eos_token")
        assert openai(server, "0", stop=[stop])[:2] == ("123456789" + REST, "stop")
    # The beginning of a stop that stands in another character, and one whose first character comes twice.
    assert openai(server, "a", stop=["漢字"])[:2] == (MANY[1:] + REST, "stop")
    assert openai(server, "x\n", stop=["\n\n\nx"], max_tokens=9)[:2] == ("\n" * 9, "length")
    server.alive()


def test_an_end_on_the_last_permitted_token_wins_over_the_limit(server: RunningServer) -> None:
    assert whole(server, "7", max_new_tokens=2)[:2] == ("89", "length")
    assert whole(server, "7", max_new_tokens=3)[:2] == ("89" + REST, "eos_token")
    assert whole(server, "7", max_new_tokens=2, stop=["9"])[:2] == ("89", "stop_sequence")
    assert whole(server, "7", max_new_tokens=3, stop=[REST])[:2] == ("89" + REST, "stop_sequence")
    assert openai(server, "7", max_tokens=2)[:2] == ("89", "length")
    assert openai(server, "7", max_tokens=3)[:2] == ("89" + REST, "stop")
    assert openai(server, "7", max_tokens=2, stop="9")[:2] == ("8", "stop")
    assert openai(server, "7", max_tokens=9, stop_token_ids=[ord("9")])[:2] == ("89", "stop")
    assert openai(server, "7", max_tokens=5, ignore_eos=True)[1] == "length"
    assert openai(server, "7", max_tokens=9, min_tokens=4)[0].startswith("89")
    server.alive()


def test_the_count_of_tokens_is_that_of_what_was_generated(server: RunningServer) -> None:
    for fields, generated in (({"max_tokens": 5}, 5), ({"max_tokens": 60}, 10), ({"max_tokens": 60, "stop": "34"}, 4)):
        usage = server.post("/v1/completions", {"prompt": "0", "temperature": 0, **fields}).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, generated, 1 + generated)
    assert server.generate("0", max_new_tokens=60, details=True)["details"]["tokens"][-1]["id"] == END


def test_the_full_text_begins_with_the_prompt_as_it_was_sent(server: RunningServer) -> None:
    for inputs in ("  spaced \t 0", "wïth 👋 0", "<b>0"):
        assert server.generate(inputs, return_full_text=True)["generated_text"] == inputs + "123456789" + REST
        assert server.generate(inputs, return_full_text=False)["generated_text"] == "123456789" + REST
        assert server.stream(inputs, return_full_text=True)[-1]["generated_text"] == inputs + "123456789" + REST
    cut = server.generate("long before 0", return_full_text=True, truncate=1, details=True, decoder_input_details=True)
    assert cut["generated_text"] == "long before 0" + "123456789" + REST
    assert [token["text"] for token in cut["details"]["prefill"]] == ["0"]
    for path in ("/", "/invocations"):
        assert server.post(path, {"inputs": "0", "parameters": {"return_full_text": True}}).json() == [
            {"generated_text": "0123456789" + REST}
        ]


def test_every_event_of_a_stream_is_json_in_utf_8(server: RunningServer) -> None:
    for path, body in (
        ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 60}}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 60, "stream": True, "temperature": 0}),
    ):
        data = server.post(path, body).body
        assert data.endswith(b"\n\n")
        blocks = data.decode("utf-8").removesuffix("\n\n").split("\n\n")
        for block in blocks:
            assert block.startswith("data:")
            assert "\n" not in block
            if block != "data: [DONE]":
                json.loads(block[5:])
