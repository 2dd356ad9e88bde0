"""Without a model named, the embedded one is served: a real model and tokenizer, asked for characters of many bytes and for ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from running_server import RunningServer

pytestmark = pytest.mark.real

COPIED = {
    "emoji": "😀 smile\n😀 smile\n😀 smile\n😀",
    "kanji": "日本語です。\n日本語です。\n日本語です。\n日",
    "thai": "สวัสดีครับ\nสวัสดีครับ\nสวัสดีครับ\nส",
    "marks": "e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301",
    "hangul": "한국어 한국어 한국어 한",
}
CAPITAL = "The capital of France is"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer("--device", "cpu", "--dtype", "float32", "--gpu-memory", "0.5", forked=True) as running:
        yield running


def both(server: RunningServer, inputs: str, **parameters: Any) -> dict[str, Any]:
    """The answer of the native route, the same as a stream."""
    whole: dict[str, Any] = server.generate(inputs, details=True, **parameters)
    events = server.stream(inputs, details=True, **parameters)
    assert [event["token"]["id"] for event in events] == [token["id"] for token in whole["details"]["tokens"]]
    assert "".join(event["token"]["text"] for event in events if not event["token"]["special"]) == whole["generated_text"]
    assert events[-1]["generated_text"] == whole["generated_text"]
    return whole


def test_characters_of_many_tokens_arrive_whole(server: RunningServer) -> None:
    def copied(text: str) -> tuple[str, list[str], list[str]]:
        whole = both(server, text, max_new_tokens=8)
        body = {"prompt": text, "max_tokens": 8, "temperature": 0, "stream": True}
        *chunks, _ = server.post("/v1/completions", body).events()
        return text, [token["text"] for token in whole["details"]["tokens"]], [chunk["choices"][0]["text"] for chunk in chunks]

    with ThreadPoolExecutor(len(COPIED)) as pool:
        for text, tokens, pieces in pool.map(copied, COPIED.values()):
            said = "".join(tokens)
            assert "".join(pieces) == said
            assert said[:3] in text  # it goes on as it began
            assert all("\ufffd" not in piece for piece in (*tokens[:-1], *pieces[:-1]))  # but where the limit cuts a character
    server.alive()


def test_every_stop_in_a_real_text_is_found(server: RunningServer) -> None:
    text = server.generate(CAPITAL, max_new_tokens=16)["generated_text"]
    assert text.startswith(" Paris.")
    stops = [text[start : start + length] for start in range(0, len(text) - 4, 7) for length in (1, 4)]

    def cut(stop: str) -> tuple[str, str, str]:
        native = both(server, CAPITAL, max_new_tokens=16, stop=[stop])
        assert native["details"]["finish_reason"] == "stop_sequence"
        body = {"prompt": CAPITAL, "max_tokens": 16, "temperature": 0, "stop": stop}
        return stop, native["generated_text"], server.post("/v1/completions", body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        for stop, native, completion in pool.map(cut, stops):
            assert native == text[: text.index(stop) + len(stop)]
            assert completion == text[: text.index(stop)]
    server.alive()


def test_an_end_token_is_named_and_no_part_of_the_text(server: RunningServer) -> None:
    question = "What is the capital of France? Answer in one word."
    chat = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, "logprobs": True}
    answer = server.post("/v1/chat/completions", chat).json()
    (choice,) = answer["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["content"]) < 24
    assert "<|im_end|>" not in choice["message"]["content"]
    *chunks, _ = server.post("/v1/chat/completions", {**chat, "stream": True, "stream_options": {"include_usage": True}}).events()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == choice["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    # The same conversation as its text, on the native route.
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    native = both(server, text, max_new_tokens=24)
    assert native["generated_text"] == choice["message"]["content"]
    last = native["details"]["tokens"][-1]
    assert (native["details"]["finish_reason"], last["special"], last["text"]) == ("eos_token", True, "<|im_end|>")
    assert len(server.post("/tokenize", {"inputs": text}).json()) == answer["usage"]["prompt_tokens"]
    server.alive()


def test_what_is_served_is_said(server: RunningServer) -> None:
    info = server.get("/info").json()
    assert info["model_id"] == server.get("/v1/models").json()["data"][0]["id"] == "smollm2-135m"
    assert (info["max_input_length"], info["max_total_tokens"]) == (1000, 1512)
    assert json.loads(server.get("/status").body)["model"]["family"] == "llama"
