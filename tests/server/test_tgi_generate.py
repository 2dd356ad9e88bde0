"""text-generation-inference's routes: what comes back for what was asked."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from running_server import RunningServer

from inferometer import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(models: dict[str, Any]) -> LLM:
    """The same model without a server."""
    return LLM(models["llama"], dtype="float32", device="cpu", weights="dummy", gpu_memory=0.25)


def test_the_answer_is_the_engines(server: RunningServer, llm: LLM) -> None:
    answer = server.generate("hello there", max_new_tokens=12, details=True, decoder_input_details=True, top_n_tokens=3)
    (expected,) = llm.generate("hello there", SamplingParams(max_new_tokens=12, prompt_logprobs=True, top_logprobs=3))
    details = answer["details"]
    assert answer["generated_text"] == expected.text
    assert set(answer) == {"generated_text", "details"}
    assert set(details) == {"finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"}
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 12, None)
    assert [token["id"] for token in details["tokens"]] == expected.token_ids
    assert [token["logprob"] for token in details["tokens"]] == pytest.approx(expected.logprobs, abs=1e-4)
    assert [token["id"] for token in details["prefill"]] == expected.prompt_token_ids
    assert details["prefill"][0]["logprob"] is None
    assert expected.prompt_logprobs is not None
    assert [token["logprob"] for token in details["prefill"][1:]] == pytest.approx(expected.prompt_logprobs[1:], abs=1e-4)
    assert [[token["id"] for token in place] for place in details["top_tokens"]] == [
        [token_id for token_id, _ in place] for place in expected.top_logprobs or ()
    ]
    assert all(set(token) == {"id", "text", "logprob", "special"} for token in details["tokens"])


def test_without_details_there_is_the_text_alone(server: RunningServer) -> None:
    answer = server.post("/generate", {"inputs": "hello"})
    assert set(answer.json()) == {"generated_text"}
    assert answer.headers["x-compute-characters"] == "5"
    names = ("compute-time", "total-time", "validation-time", "queue-time", "inference-time", "time-per-token")
    assert all(answer.headers[f"x-{name}"].isdecimal() for name in names)
    assert len(server.generate("hello", details=True)["details"]["tokens"]) == 20
    assert server.generate("hello", details=True)["details"]["prefill"] == []


def test_a_stream_says_the_same_as_a_whole_answer(server: RunningServer) -> None:
    whole = server.generate("hello", max_new_tokens=30, details=True)
    *before, last = server.stream("hello", max_new_tokens=30, details=True)
    assert all(event["generated_text"] is None and event["details"] is None for event in before)
    assert last["generated_text"] == whole["generated_text"]
    assert last["details"] == {"finish_reason": "length", "generated_tokens": 30, "seed": None}
    assert [event["token"] for event in [*before, last]] == whole["details"]["tokens"]
    assert "".join(event["token"]["text"] for event in [*before, last]) == whole["generated_text"]
    assert server.stream("hello", max_new_tokens=3)[-1]["details"] is None


def test_the_full_text_begins_with_the_prompt(server: RunningServer) -> None:
    text = server.generate("héllo ")["generated_text"]
    assert server.generate("héllo ", return_full_text=True)["generated_text"] == "héllo " + text
    assert server.stream("héllo ", return_full_text=True)[-1]["generated_text"] == "héllo " + text


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_the_compatible_routes_stream_or_answer_with_a_list(server: RunningServer, path: str) -> None:
    whole = server.post(path, {"inputs": "hello"})
    assert whole.status == 200
    assert whole.json() == [server.generate("hello")]
    stream = server.post(path, {"inputs": "hello", "stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.events() == server.stream("hello")


def test_a_seed_decides_and_a_drawn_one_is_told(server: RunningServer) -> None:
    drawn = server.generate("hello", do_sample=True, details=True, max_new_tokens=16)
    seed = drawn["details"]["seed"]
    assert server.generate("hello", do_sample=True, details=True, max_new_tokens=16, seed=seed) == drawn
    assert server.generate("hello", do_sample=True, max_new_tokens=16)["generated_text"] != drawn["generated_text"]
    assert server.generate("hello", do_sample=True, seed=2**64 - 1, details=True)["details"]["seed"] == 2**64 - 1


def test_truncation_keeps_the_tail(server: RunningServer) -> None:
    cut = server.generate("something before, and the tail", truncate=8, details=True, decoder_input_details=True)
    assert "".join(token["text"] for token in cut["details"]["prefill"]) == "the tail"
    assert cut["generated_text"] == server.generate("the tail")["generated_text"]


def test_best_of_returns_the_likeliest(server: RunningServer) -> None:
    details = server.generate("hello", best_of=2, temperature=1.0, details=True, max_new_tokens=12)["details"]
    others = details["best_of_sequences"]
    assert len(others) == 1
    assert set(others[0]) == {"generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"}
    means = [math.fsum(token["logprob"] for token in each["tokens"]) / len(each["tokens"]) for each in (details, *others)]
    assert means[0] >= means[1]
    assert details["seed"] != others[0]["seed"]
    assert [token["id"] for token in details["tokens"]] != [token["id"] for token in others[0]["tokens"]]


def test_a_stop_sequence_ends_the_text_wherever_it_stands(server: RunningServer) -> None:
    text = server.generate("stop here", max_new_tokens=40, repetition_penalty=1.5)["generated_text"]
    for start in range(0, len(text) - 3, 2):
        stop = text[start : start + 3]
        end = text.index(stop) + len(stop)
        for answer in (
            server.generate("stop here", max_new_tokens=40, repetition_penalty=1.5, stop=[stop], details=True),
            server.stream("stop here", max_new_tokens=40, repetition_penalty=1.5, stop=[stop], details=True)[-1],
        ):
            assert answer["generated_text"] == text[:end]
            assert answer["details"]["finish_reason"] == "stop_sequence"


def test_a_stop_sequence_as_long_as_a_body_costs_nothing(server: RunningServer) -> None:
    text = server.generate("stop here", max_new_tokens=40, repetition_penalty=1.5)["generated_text"]
    never = [text[:-1] + "ab" * 200_000 + str(n) for n in range(3)]
    cut = server.generate("stop here", max_new_tokens=40, repetition_penalty=1.5, stop=[*never, text[5:7]])
    assert cut["generated_text"] == text[: text.index(text[5:7]) + 2]
    assert server.generate("stop here", max_new_tokens=40, repetition_penalty=1.5, stop=never)["generated_text"] == text
    server.alive()


def test_a_text_as_long_as_a_body_is_cut_into_tokens(server: RunningServer) -> None:
    tokens = server.post("/tokenize", {"inputs": "é" * 50_000}).json()
    assert len(tokens) == 100_000
    assert tokens[-1] == {"id": 169, "text": "é", "start": 49_999, "stop": 50_000}
    server.alive()


def test_a_watermark_changes_the_text_and_what_it_prefers(server: RunningServer) -> None:
    plain = server.generate("hello", max_new_tokens=40, details=True)
    marked = server.generate("hello", max_new_tokens=40, watermark=True, details=True)
    assert plain["generated_text"] != marked["generated_text"]
    assert marked == server.generate("hello", max_new_tokens=40, watermark=True, details=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 1.5},
        {"top_k": 5, "seed": 1},
        {"top_p": 0.5, "seed": 1},
        {"typical_p": 0.5, "seed": 1},
        {"temperature": 2.5, "seed": 1},
        {"do_sample": True, "seed": 1},
        {"truncate": 3},
    ],
)
def test_a_parameter_does_what_the_engine_does(server: RunningServer, llm: LLM, parameters: dict[str, Any]) -> None:
    (expected,) = llm.generate("the prompt", SamplingParams(max_new_tokens=24, **parameters))
    assert server.generate("the prompt", max_new_tokens=24, **parameters)["generated_text"] == expected.text


def test_different_requests_at_once_equal_each_alone(bloom_server: RunningServer) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"top_k": 7, "seed": 3},
        {"top_p": 0.7, "seed": 4, "temperature": 1.4},
        {"typical_p": 0.6, "seed": 5},
        {"watermark": True},
        {"repetition_penalty": 1.3, "stop": ["e"]},
        {"do_sample": True, "seed": 9, "top_n_tokens": 2},
        {"frequency_penalty": 0.7, "decoder_input_details": True},
    ]
    asked = [(f"prompt number {n % 5}", {"max_new_tokens": 5 + n, "details": True, **kinds[n % len(kinds)]}) for n in range(16)]
    alone = [bloom_server.generate(inputs, **parameters) for inputs, parameters in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda each: bloom_server.generate(each[0], **each[1]), asked))
    for one, other in zip(alone, together, strict=True):
        assert one["generated_text"] == other["generated_text"]
        assert [token["id"] for token in one["details"]["tokens"]] == [token["id"] for token in other["details"]["tokens"]]
    bloom_server.alive()


def test_information(server: RunningServer) -> None:
    info = server.get("/info").json()
    assert info["max_concurrent_requests"] == 128
    assert (info["max_input_length"], info["max_total_tokens"]) == (256, 512)
    assert info["model_dtype"] == "torch.float32"
    assert info["model_device_type"] == "cpu"
    assert info["max_batch_total_tokens"] >= 512
    assert {"model_sha", "model_pipeline_tag", "version", "sha", "docker_label", "validation_workers"} <= set(info)


def test_a_text_is_cut_into_tokens(server: RunningServer) -> None:
    tokens = server.post("/tokenize", {"inputs": "aé"}).json()
    assert tokens == [
        {"id": 97, "text": "a", "start": 0, "stop": 1},
        {"id": 195, "text": "é", "start": 1, "stop": 2},
        {"id": 169, "text": "é", "start": 1, "stop": 2},
    ]


@pytest.mark.parametrize("path", ["/", "/health", "/ping"])
def test_health_is_an_empty_answer(server: RunningServer, path: str) -> None:
    answer = server.get(path)
    assert (answer.status, answer.body) == (200, b"")


def test_the_documentation_knows_the_bodies(server: RunningServer) -> None:
    document = server.get("/api-doc/openapi.json").json()
    assert {"/", "/generate", "/generate_stream", "/invocations", "/tokenize", "/info", "/health", "/ping"} <= set(document["paths"])
    assert "inputs" in document["components"]["schemas"]["GenerateRequest"]["properties"]
    assert "best_of" in document["components"]["schemas"]["GenerateParameters"]["properties"]
