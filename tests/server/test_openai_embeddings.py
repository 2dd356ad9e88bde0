"""Embeddings over HTTP, and what an encoder and a decoder say to a request for the other."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import openai
import pytest
from running_server import RunningServer, dummy, until

from inferometer import LLM
from inferometer.errors import ModelError
from inferometer.server.embedding_loop import EmbeddingLoop
from inferometer.server.messages import Abort, Command, Embed, Embedded, Event, Refused, Stop
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def llm(encoder: Path) -> LLM:
    return LLM(encoder, dtype="float32", device="cpu", weights="dummy")


@pytest.fixture(scope="module")
def server(encoder_server: RunningServer) -> RunningServer:
    return encoder_server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def alive(server: RunningServer, llm: LLM) -> None:
    """Asserts that a plain request is answered as ever, and that health is good."""
    answer = server.post("/v1/embeddings", {"input": "plain"})
    assert answer.status == 200
    assert answer.json()["data"][0]["embedding"] == pytest.approx(llm.encode("plain")[0].tolist(), abs=1e-5)
    assert server.get("/health").status == 200


def test_vectors_are_the_engines(client: openai.OpenAI, llm: LLM, server: RunningServer) -> None:
    texts = ["one text", "é", "a rather longer text than those before it"]
    expected = llm.encode(texts)
    for given in ({}, {"encoding_format": "float"}, {"dimensions": 32}):  # by itself the client asks for base64
        answer = client.embeddings.create(model="tgi", input=texts, **given)  # type: ignore[call-overload]
        np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=1e-5)
        assert [each.index for each in answer.data] == [0, 1, 2]
        assert answer.object == "list"
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(text.encode()) for text in texts)
    alive(server, llm)


def test_base64_is_little_endian_float32(server: RunningServer, llm: LLM) -> None:
    answer = server.post("/v1/embeddings", {"input": "one text", "encoding_format": "base64"}).json()
    data = base64.b64decode(answer["data"][0]["embedding"], validate=True)
    assert struct.unpack("<32f", data) == pytest.approx(llm.encode("one text")[0].tolist(), abs=1e-5)


def test_tokens_are_as_good_as_text(client: openai.OpenAI) -> None:
    texts = ["one", "other"]
    expected = client.embeddings.create(model="tgi", input=texts).data
    ids = [list(text.encode()) for text in texts]
    assert client.embeddings.create(model="tgi", input=ids).data == expected
    alone = client.embeddings.create(model="tgi", input=ids[0]).data[0].embedding
    assert alone == pytest.approx(expected[0].embedding, abs=1e-5)  # a batch of another shape is summed in another order


def test_many_texts_come_back_in_order(client: openai.OpenAI, llm: LLM) -> None:
    texts = [f"text number {n}" * (1 + n % 3) for n in range(75)]
    answer = client.embeddings.create(model="tgi", input=texts)
    np.testing.assert_allclose([each.embedding for each in answer.data], llm.encode(texts), atol=1e-5)
    assert [each.index for each in answer.data] == list(range(75))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"input": [1, "x"]}, "input"),
        ({"input": ["x", 1]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": [300]}, None),
        ({"input": [-1]}, None),
        ({"input": [2**70]}, None),
        ({"input": "x", "dimensions": 8}, "dimensions"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "\ud800"}, None),
    ],
)
def test_a_broken_rule_is_named(server: RunningServer, llm: LLM, body: Any, param: str | None) -> None:
    answer = server.post("/v1/embeddings", body)
    assert answer.status == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if param is not None:
        assert answer.json()["error"]["param"] == param
    alive(server, llm)


def test_a_text_may_be_as_long_as_the_model_reads(server: RunningServer) -> None:
    assert server.post("/v1/embeddings", {"input": "x" * 64}).status == 200
    answer = server.post("/v1/embeddings", {"input": ["x", "x" * 65]})
    assert answer.status == 400
    assert answer.json()["error"]["message"] == "`input` must have at most 64 tokens in each text, not 65 as number 1 has"
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 64
    assert server.get("/info").json()["max_input_length"] == 64


def test_a_model_that_reads_less_than_it_has_positions_for_says_so(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "bert")
    (folder / "modules.json").write_text("[]")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    with dummy(folder, forked=True) as server:
        assert server.post("/v1/embeddings", {"input": "x" * 16}).status == 200
        assert server.post("/v1/embeddings", {"input": "x" * 17}).status == 400
        assert server.get("/info").json()["max_input_length"] == 16
        assert server.get("/status").json()["limits"]["max_input_length"] == 16
        assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 16


def test_an_encoder_generates_nothing_and_says_so(server: RunningServer, llm: LLM) -> None:
    for path, body in (
        ("/generate", {"inputs": "x"}),
        ("/", {"inputs": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = server.post(path, body)
        assert answer.status == (400 if path.startswith("/v1") else 422)
        assert b"tiny-bert is an encoder: it embeds text and does not generate any; use /v1/embeddings" in answer.body
    (event,) = server.post("/generate_stream", {"inputs": "x"}).events()
    assert event["error_type"] == "validation"
    alive(server, llm)


def test_a_decoder_embeds_nothing_and_says_so(chat_server: RunningServer) -> None:
    answer = chat_server.post("/v1/embeddings", {"input": "x"})
    assert answer.status == 400
    assert "is a decoder: it generates text and does not embed any" in answer.json()["error"]["message"]
    chat_server.alive()


def test_who_goes_away_gives_the_permit_back(server: RunningServer, llm: LLM) -> None:
    for _ in range(4):
        connection = server.connect()
        body = json.dumps({"input": ["a text of some length, for work"] * 2000})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        connection.close()
    until(lambda: server.post("/v1/embeddings", {"input": "x"}).status == 200)
    alive(server, llm)


class Counting:
    """Stands in for a model: counts what it embeds."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.calls: list[int] = []
        self.failure = failure or RuntimeError("broken")

    def encode(self, rows: list[list[int]]) -> np.ndarray:
        self.calls.append(rows[0][0])
        if rows[0][0] == 13:
            raise self.failure
        return np.zeros((len(rows), 4), np.float32)


@pytest.mark.parametrize("failure", [RuntimeError("broken"), ModelError("its weights are damaged")])
def test_what_was_dropped_before_its_turn_is_not_embedded(failure: Exception) -> None:
    """A failure is nobody's wrong request, damaged weights neither."""
    commands: SimpleQueue[Command] = SimpleQueue()
    events: list[Event] = []
    model = Counting(failure)

    def hear(event: Event) -> None:
        events.append(event)
        if len(events) == 3:
            commands.put(Stop())

    for number in (1, 2, 13, 4):
        commands.put(Embed(number, ((number,),)))
    commands.put(Abort((2, 99)))
    EmbeddingLoop(model, commands, hear).run()  # type: ignore[arg-type]
    assert model.calls == [1, 13, 4]
    assert [type(event).__name__ for event in events] == ["Embedded", "Broken", "Embedded"]
    assert isinstance(events[0], Embedded)
    assert not any(isinstance(event, Refused) for event in events)
    assert events[0].vectors == bytes(16)
