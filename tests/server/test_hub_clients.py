"""The Hub's client and text-generation-inference's own, against the routes that they were made for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, OverloadedError, ValidationError
from open_requests import Frozen
from running_server import RunningServer, until
from scraped import scrape

REPOSITORY = Path(__file__).resolve().parents[2]
EVERYTHING: dict[str, Any] = {
    "max_new_tokens": 9,
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.9,
    "typical_p": 0.9,
    "repetition_penalty": 1.1,
    "seed": 5,
    "truncate": 6,
    "watermark": True,
    "return_full_text": True,
    "top_n_tokens": 2,
}
QUESTION = [{"role": "user", "content": "héllo 👋"}]


@pytest.fixture(scope="module")
def hub(chat_server: RunningServer) -> InferenceClient:
    return InferenceClient(chat_server.url, token="none", timeout=60)


def test_the_hubs_client_generates(hub: InferenceClient, chat_server: RunningServer) -> None:
    expected = chat_server.generate("hello", max_new_tokens=9, details=True)
    assert hub.text_generation("hello", max_new_tokens=9) == expected["generated_text"]
    detailed = hub.text_generation("hello", max_new_tokens=9, details=True)
    assert detailed.details is not None
    assert (detailed.details.finish_reason, detailed.details.generated_tokens) == ("length", 9)
    assert [token.id for token in detailed.details.tokens] == [token["id"] for token in expected["details"]["tokens"]]
    chat_server.alive()


def test_the_hubs_client_streams(hub: InferenceClient, chat_server: RunningServer) -> None:
    expected = chat_server.generate("hello", max_new_tokens=9, details=True)
    assert "".join(hub.text_generation("hello", max_new_tokens=9, stream=True)) == expected["generated_text"]
    *before, last = hub.text_generation("hello", max_new_tokens=9, stream=True, details=True)
    assert all(event.generated_text is None for event in before)
    assert last.generated_text == expected["generated_text"]
    assert last.details is not None
    assert (last.details.finish_reason, last.details.generated_tokens) == ("length", 9)
    assert [event.token.id for event in [*before, last]] == [token["id"] for token in expected["details"]["tokens"]]


def test_the_hubs_client_may_set_everything(hub: InferenceClient, chat_server: RunningServer) -> None:
    prompt = "something before hello"
    answer = hub.text_generation(prompt, details=True, decoder_input_details=True, **EVERYTHING)
    expected = chat_server.generate(prompt, details=True, decoder_input_details=True, **EVERYTHING)
    assert answer.generated_text == expected["generated_text"]
    assert answer.generated_text.startswith(prompt)
    assert answer.details is not None
    assert (answer.details.seed, len(answer.details.prefill), len(answer.details.top_tokens or ())) == (5, 6, 9)
    best = hub.text_generation("hello", best_of=2, do_sample=True, details=True, max_new_tokens=5, stop=["never in it"])
    assert best.details is not None
    assert len(best.details.best_of_sequences or ()) == 1


def test_the_hubs_client_is_told_what_is_wrong(hub: InferenceClient, chat_server: RunningServer) -> None:
    for wrong in ({"max_new_tokens": 0}, {"top_p": 1.5}, {"adapter_id": "mine"}, {"grammar": {"type": "regex", "value": "a+"}}):
        (name,) = wrong
        for stream in (False, True):
            with pytest.raises(ValidationError, match=f"`{name}`"):
                list(hub.text_generation("hello", stream=stream, **wrong))  # type: ignore[call-overload]
    with pytest.raises(BadRequestError, match="does not support calling tools"):
        hub.chat_completion(QUESTION, tools=[{"type": "function", "function": {"name": "f", "parameters": {}, "description": ""}}])
    chat_server.alive()


def test_the_hubs_client_is_told_that_the_server_is_full(keyed_server: RunningServer) -> None:
    client = InferenceClient(keyed_server.url, token="sesame", timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sesame"}
    held = [keyed_server.connect() for _ in range(4)]
    with Frozen(keyed_server):
        for connection in held:
            connection.request("POST", "/generate_stream", json.dumps({"inputs": "x"}), headers)
        until(lambda: scrape(keyed_server)["inferometer_permits_in_use"] == 4)
        with pytest.raises(OverloadedError):
            client.text_generation("hello", max_new_tokens=2)
    for connection in held:
        connection.close()
    until(lambda: scrape(keyed_server)["inferometer_permits_in_use"] == 0)


def test_the_hubs_client_chats(hub: InferenceClient, chat_server: RunningServer) -> None:
    wanted: dict[str, Any] = {
        "max_tokens": 8,
        "temperature": 0.7,
        "seed": 3,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "top_p": 0.8,
    }
    whole = hub.chat_completion(QUESTION, n=2, logprobs=True, top_logprobs=2, stop=["never in it"], **wanted)
    assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens / 2 == 8
    pieces = list(hub.chat_completion(QUESTION, stream=True, stream_options={"include_usage": True}, **wanted))
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 8
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == whole.choices[0].message.content
    chat_server.alive()


def client_of_its_own(server: RunningServer, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What came of some calls by text-generation-inference's client, in the environment that it needs."""
    python = REPOSITORY / ".venv-tgi-client/bin/python"
    assert python.exists(), "the client's environment is missing: make tgi-client"
    script = Path(__file__).with_name("tgi_client.py")
    wanted = json.dumps({"url": server.url, "calls": calls})
    done = subprocess.run([python, script], input=wanted, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def test_the_servers_own_client_generates_streams_chats_and_is_told_what_is_wrong(chat_server: RunningServer) -> None:
    nine = {"prompt": "hello", "max_new_tokens": 9}
    everything = {"prompt": "something before hello", "decoder_input_details": True, **EVERYTHING}
    chat = {"messages": QUESTION, "max_tokens": 7, "temperature": 0.0}
    whole, awaited, stream, awaited_stream, full, best, chatted, chat_awaited, *wrong = client_of_its_own(
        chat_server,
        ("generate", nine),
        ("async generate", nine),
        ("generate_stream", nine),
        ("async generate_stream", nine),
        ("generate", everything),
        ("generate", {**nine, "best_of": 2, "do_sample": True}),
        ("chat", chat),
        ("async chat", chat),  # as a stream it wants a role with every piece, which OpenAI's client would add up
        ("generate", {**nine, "max_new_tokens": 0}),
        ("generate_stream", {**nine, "max_new_tokens": 100_000}),
        ("async generate", {**nine, "grammar": {"type": "regex", "value": "a+"}}),
    )
    expected = chat_server.generate("hello", max_new_tokens=9, details=True)
    assert whole["value"]["generated_text"] == expected["generated_text"]
    assert [token["id"] for token in whole["value"]["details"]["tokens"]] == [token["id"] for token in expected["details"]["tokens"]]
    assert awaited == whole
    assert awaited_stream == stream
    assert [event["token"] for event in stream["values"]] == whole["value"]["details"]["tokens"]
    last = stream["values"][-1]
    assert last["generated_text"] == expected["generated_text"]
    assert (last["details"]["finish_reason"], last["details"]["generated_tokens"]) == ("length", 9)
    again = chat_server.generate("something before hello", details=True, decoder_input_details=True, **EVERYTHING)
    assert full["value"]["generated_text"] == again["generated_text"]
    assert [token["id"] for token in full["value"]["details"]["prefill"]] == [token["id"] for token in again["details"]["prefill"]]
    assert len(best["value"]["details"]["best_of_sequences"]) == 1
    (choice,) = chatted["value"]["choices"]
    asked = chat_server.post("/v1/chat/completions", chat).json()
    assert choice["message"]["content"] == asked["choices"][0]["message"]["content"]
    assert chat_awaited["value"]["choices"] == chatted["value"]["choices"]
    assert [each["error"] for each in wrong] == ["ValidationError"] * 3
    assert [next(word for word in ("max_new_tokens", "grammar") if word in each["message"]) for each in wrong] == [
        "max_new_tokens",
        "max_new_tokens",
        "grammar",
    ]
    chat_server.alive()
