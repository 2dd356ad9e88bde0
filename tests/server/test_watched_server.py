"""What a server tells of itself adds up, and never holds what it was told: metrics, logs and traces under a mix of requests."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent import futures
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
from open_requests import Frozen, ask
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from running_server import LIMITS, RunningServer, dummy, until
from scraped import Difference, scrape
from span_collector import SpanCollector

CANARY = "canary-7f3e9d"
SHORT = {"inputs": f"{CANARY} a short one", "parameters": {"max_new_tokens": 3}}
LONG = {"inputs": f"{CANARY} a long one", "parameters": {"max_new_tokens": 400}}


@pytest.fixture(scope="module")
def collected() -> Iterator[tuple[SpanCollector, int]]:
    """A collector and its port."""
    listening = grpc.server(futures.ThreadPoolExecutor(2))
    spans = SpanCollector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(spans, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    listening.start()
    yield spans, port
    listening.stop(None).wait()


@pytest.fixture(scope="module")
def watched(models: dict[str, Path], collected: tuple[SpanCollector, int]) -> Iterator[RunningServer]:
    """A server with four permits that logs JSON and sends traces."""
    traced = ("--otlp-endpoint", f"http://127.0.0.1:{collected[1]}", "--json-output", "--payload-limit", "5000")
    with dummy_with(models["llama"], {"OTEL_BSP_SCHEDULE_DELAY": "100"}, *LIMITS, "--max-concurrent-requests", "4", *traced) as running:
        running.alive()
        yield running


@pytest.fixture(scope="module", autouse=True)
def unheard(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server whose collector is away. It has been asked before the other tests, as it takes seconds until it says that."""
    away = ("--otlp-endpoint", "http://127.0.0.1:9", *LIMITS)
    with dummy_with(models["llama"], {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_BSP_MAX_QUEUE_SIZE": "600"}, *away) as running:
        running.alive()
        for _ in range(20):
            running.generate("untraced", max_new_tokens=1)
        yield running


def dummy_with(folder: Path, environment: dict[str, str], *more: str) -> RunningServer:
    fixed = ("--model-id", str(folder), "--weights", "dummy", "--dtype", "float32", "--device", "cpu")
    return RunningServer(*fixed, *more, environment=environment)


def leave(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def test_every_request_has_one_outcome_and_tokens_are_the_sum_of_the_usages(watched: RunningServer) -> None:
    moved = Difference(watched)
    prompt = generated = 0
    for body in (SHORT, {"inputs": "another", "parameters": {"max_new_tokens": 7, "stop": ["never in it"]}}):
        answer = watched.post("/generate", {**body, "parameters": {**body["parameters"], "details": True, "decoder_input_details": True}})
        prompt += len(answer.json()["details"]["prefill"])
        generated += answer.json()["details"]["generated_tokens"]
    events = watched.stream("four", max_new_tokens=5)
    prompt, generated = prompt + 4, generated + len(events)
    # Drawn from what never ends a text early: an end token by chance would be another reason to finish.
    completion = {"model": "m", "prompt": "five5", "n": 2, "max_tokens": 4, "temperature": 1.0, "seed": 1}
    usage = watched.post("/v1/completions", completion).json()["usage"]
    prompt, generated = prompt + usage["prompt_tokens"], generated + usage["completion_tokens"]
    best = {"inputs": "six666", "parameters": {"max_new_tokens": 4, "best_of": 2, "do_sample": True, "temperature": 0.01}}
    assert watched.post("/generate", best).status == 200
    # In the order of how far they get: not even a body, no JSON, not of the form, not within the rules.
    assert watched.request("POST", "/generate", "{}").status == 415
    assert watched.request("POST", "/", "{" + "x" * 6000, {"Content-Type": "application/json"}).status == 413
    assert watched.request("POST", "/generate", "{nonsense", {"Content-Type": "application/json"}).status == 400
    assert watched.post("/v1/completions", {"prompt": 7}).status == 400
    assert watched.post("/generate", {"inputs": "x", "parameters": {"top_k": 0}}).status == 422
    assert watched.stream("x", top_p=1.5)[0]["error_type"] == "validation"
    # Not requests for a generation.
    assert watched.post("/nowhere", {}).status == 404
    assert watched.get("/generate").status == 405
    assert watched.post("/tokenize", {"inputs": "x"}).status == 200
    with Frozen(watched):
        held = [ask(watched, "/generate", SHORT) for _ in range(2)] + [ask(watched, "/generate_stream", SHORT) for _ in range(2)]
        until(lambda: scrape(watched)["inferometer_permits_in_use"] == 4)
        assert scrape(watched)["tgi_batch_current_size"] + scrape(watched)["tgi_queue_size"] == 4
        for _ in range(3):
            assert watched.post("/generate", SHORT).status == 429
        leave(held[:1] + held[2:3])
        until(lambda: scrape(watched)["inferometer_permits_in_use"] == 2)
    for connection in (held[1], held[3]):
        connection.getresponse().read()
        connection.close()
    moved.look()
    succeeded = 5 + 2
    assert moved("tgi_request_count") == succeeded + 6 + 3 + 2
    assert moved("tgi_request_success") == succeeded
    assert moved('tgi_request_failure{err="validation"}') == 6
    assert moved('tgi_request_failure{err="overloaded"}') == 3
    assert moved('tgi_request_failure{err="dropped"}') == 2
    assert moved.total("tgi_request_failure{") == 11
    assert moved("inferometer_requests_received_total") == moved.total("inferometer_requests_total{") == moved("tgi_request_count")
    assert moved('inferometer_requests_total{outcome="payload_too_large"}') == 1
    assert moved('inferometer_requests_total{outcome="unsupported_media_type"}') == 1
    held_tokens = len(SHORT["inputs"])
    assert moved("inferometer_prompt_tokens_total") == prompt + 6 + 2 * held_tokens
    assert moved("inferometer_generation_tokens_total") == generated + 8 + 2 * 3
    assert moved("tgi_request_generated_tokens_sum") == generated + 4 + 2 * 3  # of best_of only the best
    names = ("request_duration", "request_validation_duration", "request_queue_duration", "request_inference_duration")
    for name in (*names, "request_mean_time_per_token_duration", "request_generated_tokens"):
        assert moved(f"tgi_{name}_count") == succeeded
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert moved(f"inferometer_{name}_seconds_count") == succeeded
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    assert sum(moved(f"inferometer_{part}_seconds_sum") for part in parts) <= moved("inferometer_e2e_request_latency_seconds_sum")
    assert moved('inferometer_http_responses_total{route="other",status="404"}') == 1
    assert moved('inferometer_http_responses_total{route="/generate",status="405"}') == 1
    # An outcome that no request for a generation can have is not there as one that never occurs.
    assert not [name for name in moved.after if 'outcome="not_found"' in name or 'outcome="method_not_allowed"' in name]
    assert moved('inferometer_finished_sequences_total{reason="length"}') == succeeded + 2
    watched.alive()


def test_the_engines_numbers_agree_with_each_other(watched: RunningServer) -> None:
    moved = Difference(watched)
    shared = "the same beginning, page after page of it "
    for tail in ("one", "two", "three"):
        watched.generate(shared + tail, max_new_tokens=6)
    moved.look()
    assert moved("inferometer_emitted_tokens_total") == 18
    assert moved("inferometer_inter_token_latency_seconds_count") == 18 - 3
    assert moved("inferometer_prefix_cache_hit_tokens_total") == 2 * (len(shared) // 16 * 16)
    computed = moved("inferometer_computed_prompt_tokens_total")
    assert computed + moved("inferometer_prefix_cache_hit_tokens_total") == moved("inferometer_prompt_tokens_total")
    assert moved("inferometer_steps_total") == moved.total("tgi_batch_inference_count{") == 18
    assert moved('tgi_batch_inference_success{method="prefill"}') == 3
    assert moved('tgi_batch_inference_duration_count{method="decode"}') == 15
    assert moved("tgi_batch_next_size_count") == 3
    spent = moved("inferometer_step_seconds_total")
    assert spent == pytest.approx(moved.total("tgi_batch_inference_duration_sum{"))
    assert 0 < moved.total("inferometer_step_bound_seconds_total{") <= moved.total("inferometer_step_predicted_seconds_total{")
    for name in ("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens", "inferometer_permits_in_use"):
        assert moved.after[name] == 0
    for name in ("inferometer_requests_running", "inferometer_requests_waiting", "inferometer_kv_pages_in_use"):
        assert moved.after[name] == 0


def test_who_goes_away_takes_nothing_along(watched: RunningServer) -> None:
    with Frozen(watched):  # so that none of them has ended before the last begins
        connections = [ask(watched, "/generate_stream", LONG) for _ in range(4)]
        until(lambda: scrape(watched)["inferometer_permits_in_use"] == 4)
    responses = [connection.getresponse() for connection in connections]
    assert all(response.readline().startswith(b"data:") for response in responses)
    with Frozen(watched):
        running = scrape(watched)
    assert running["inferometer_kv_pages_in_use"] > 0
    assert running["tgi_batch_current_max_tokens"] == 4 * (len(LONG["inputs"]) + 400)
    for response in responses:
        response.close()
    leave(connections)
    until(lambda: scrape(watched)["inferometer_kv_pages_in_use"] == scrape(watched)["inferometer_requests_running"] == 0)
    after = scrape(watched)
    assert after["tgi_batch_current_size"] == after["inferometer_permits_in_use"] == 0
    assert scrape(watched)["inferometer_emitted_tokens_total"] == after["inferometer_emitted_tokens_total"]
    watched.alive()


def test_the_exposition_is_one_that_prometheus_reads(watched: RunningServer) -> None:
    text = watched.get("/metrics").body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tgi_request_count"].type == families["inferometer_requests"].type == "counter"
    assert re.search(r"(?m)^# TYPE tgi_request_failure counter$", text)
    assert not re.search(r"(?m)^(# TYPE )?tgi_\w+_total\b", text)
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert len(histograms) > 15
    for family in histograms:
        series: dict[str, list[tuple[str, float]]] = {}
        counts = {}
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            if sample.name.endswith("_bucket"):
                series.setdefault(str(labels), []).append((sample.labels["le"], sample.value))
            elif sample.name.endswith("_count"):
                counts[str(labels)] = sample.value
        assert series.keys() == counts.keys()
        for labels, buckets in series.items():
            values = [value for _, value in buckets]
            assert values == sorted(values)
            assert buckets[-1] == ("+Inf", counts[labels])
    assert sum(line.startswith("tgi_batch_next_size_bucket") for line in text.splitlines()) == 1025
    assert sum(line.startswith("tgi_request_input_length_bucket") for line in text.splitlines()) == 101


def test_nothing_that_was_sent_is_told_to_logs_metrics_or_traces(watched: RunningServer, collected: tuple[SpanCollector, int]) -> None:
    spelled = {
        "Content-Type": "application/json",
        "X-Request-Id": CANARY,
        "User-Agent": CANARY,
        "Traceparent": CANARY,
        "Tracestate": CANARY,
    }
    chat = {"model": CANARY, "messages": [{"role": "user", "content": CANARY}], "max_tokens": 2, "user": CANARY}
    for path, body in (
        ("/generate", {"inputs": CANARY, "parameters": {"max_new_tokens": 2, "stop": [CANARY]}}),
        ("/generate_stream", {"inputs": CANARY * 40, "parameters": {"max_new_tokens": 2}}),
        ("/", {"inputs": CANARY, "stream": True, "parameters": {"max_new_tokens": 2, CANARY: CANARY}}),
        ("/generate", {"inputs": {CANARY: CANARY}}),
        ("/generate", {"inputs": CANARY, "parameters": {"max_new_tokens": CANARY}}),
        ("/tokenize", {"inputs": CANARY}),
        ("/v1/completions", {"model": CANARY, "prompt": [CANARY, CANARY], "max_tokens": 2}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/embeddings", {"model": CANARY, "input": CANARY}),
        (f"/{CANARY}", {"inputs": CANARY}),
        (f"/generate?q={CANARY}", {"inputs": CANARY, "parameters": {"max_new_tokens": 1}}),
    ):
        assert watched.post(path, body, spelled).status < 500
    assert watched.request("POST", "/generate", f'{{"inputs": "{CANARY}', spelled).status == 400
    assert watched.request("POST", "/generate", CANARY, {"Content-Type": f"text/{CANARY}"}).status == 415
    assert watched.request(CANARY.upper(), "/generate").status >= 400
    watched.generate("the last one", max_new_tokens=9)
    watched.wait_for_log(r'"generated_tokens": 9\b')
    spans, _ = collected
    until(lambda: any(attributes(span).get("gen_ai.usage.output_tokens") == 9 for span in spans.spans))
    told = [watched.log, watched.get("/metrics").body.decode(), watched.get("/status").body.decode(), *map(str, spans.requests)]
    for text in told:
        assert CANARY not in text.lower()
    for line in watched.log.splitlines():
        assert {"timestamp", "level", "message", "target"} <= json.loads(line).keys()


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def test_a_span_tells_where_a_requests_time_went(watched: RunningServer, collected: tuple[SpanCollector, int]) -> None:
    spans, _ = collected
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = watched.post("/generate", {"inputs": "traced", "parameters": {"max_new_tokens": 11}}, {"traceparent": parent})
    until(lambda: sum(span.trace_id.hex() == parent[3:35] for span in spans.spans) == 4)
    by_name = {span.name: span for span in spans.spans if span.trace_id.hex() == parent[3:35]}
    assert by_name.keys() == {"POST /generate", "queue", "prefill", "decode"}
    whole = by_name["POST /generate"]
    assert whole.parent_span_id.hex() == parent[36:52]
    found = attributes(whole)
    assert found["request_id"] == answer.headers["x-request-id"]
    assert (found["outcome"], found["http.response.status_code"], found["http.route"]) == ("success", 200, "/generate")
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (6, 11)
    assert found["queue_time_ms"] + found["inference_time_ms"] + found["validation_time_ms"] <= found["total_time_ms"]
    assert found["total_time_ms"] == pytest.approx((whole.end_time_unix_nano - whole.start_time_unix_nano) / 1e6, rel=0.01)
    last = whole.start_time_unix_nano
    for name in ("queue", "prefill", "decode"):
        span = by_name[name]
        assert span.parent_span_id == whole.span_id
        assert last <= span.start_time_unix_nano <= span.end_time_unix_nano <= whole.end_time_unix_nano
        last = span.start_time_unix_nano
    names = [resource.resource.attributes for request in spans.requests for resource in request.resource_spans]
    assert any(item.key == "service.name" and item.value.string_value for item in names[0])


def test_a_dead_engine_is_counted_once_for_each_that_it_took_along(models: dict[str, Path]) -> None:
    with dummy(models["llama"], *LIMITS, forked=True) as small_server:
        moved = Difference(small_server)
        streams = [small_server.open_stream("/generate_stream", LONG) for _ in range(2)]
        os.kill(small_server.engine_process(), signal.SIGKILL)
        for connection, response in streams:
            assert b'"generation"' in response.read()
            connection.close()
        assert small_server.post("/generate", SHORT).status == 503
        moved.look()
        assert moved("tgi_request_count") == moved('tgi_request_failure{err="generation"}') == 3
        assert moved.after["tgi_batch_current_size"] == moved.after["inferometer_permits_in_use"] == 0
        assert small_server.get("/status").json()["health"] == "unhealthy"


def test_a_collector_that_is_away_costs_nobody_anything(unheard: RunningServer) -> None:
    unheard.wait_for_log("traces do not reach http://127.0.0.1:9; requests are served without", 60)
    unheard.alive()
    began = time.monotonic()
    assert unheard.end() == 0
    assert time.monotonic() - began < 15
    assert unheard.log.count("traces do not reach") == 1
