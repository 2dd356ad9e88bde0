"""`bench --backend http`: of this product's own server in both APIs, and of servers that take less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer
from scripted_server import ScriptedServer, answer, stream

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.records.record import Record
from inferometer.bench.serving.http_benchmark import http_benchmark
from inferometer.bench.study.cell import template_of
from inferometer.bench.study.figure import STATISTICS, find_figure, measured, statistic
from inferometer.cli.main import main
from inferometer.errors import UserError
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = tiny_model(tmp_path_factory.mktemp("model"), "llama")
    limits = ("--max-input-length", "40", "--max-total-tokens", "60", "--gpu-memory", "0.25")
    with RunningServer(
        "--model-id", str(model), "--weights", "dummy", "--dtype", "float32", "--device", "cpu", *limits, forked=True
    ) as running:
        yield running


def run(url: str, **changes: Any) -> list[Record]:
    values: dict[str, Any] = {
        "model": None, "backends": ("http",), "url": url, "batch_sizes": (1, 3), "sequence_length": 16, "decode_length": 5, "runs": 2,
        "slo_ttft_ms": 60_000.0, "slo_tpot_ms": 60_000.0, "request_timeout": 60.0,
    }  # fmt: skip
    emitted: list[Record] = []
    records = http_benchmark(BenchRequest(**{**values, **changes}), emitted.append)
    assert emitted == records
    return [Record.from_json(json.loads(json.dumps(record.to_json()))) for record in records]


@pytest.mark.parametrize("api", ["openai", "tgi", "auto"])
@pytest.mark.parametrize("tokenizer", [None, "byte"])
def test_our_own_server_in_both_apis(server: RunningServer, api: str, tokenizer: str | None) -> None:
    records = run(server.url, api=api, tokenizer=tokenizer)
    assert [(r.status, r.batch_size, r.requests) for r in records] == [("ok", 1, 2), ("ok", 3, 6)]
    for record in records:
        found = record.serving
        assert found is not None
        assert record.api == found["api"] == ("tgi" if api == "tgi" else "openai")
        assert (record.model, record.dtype, record.prefill_ms) == ("tiny-llama", "float32", None)
        assert (found["served"], found["failed"], found["failures"]) == (record.requests, 0, {})
        assert found["output_tokens"] == {"mean": 5, "min": 5, "max": 5}
        assert found["notes"] == [] or found["client"]["bound"]
        # Tokens that came at once have no gaps between them; on a busy machine that can be all.
        assert (found["itl"] or {"count": 0})["count"] <= 4 * found["served"]
        assert found["goodput"] == pytest.approx(found["requests_s"])
        assert found["length_forced"] == (record.api == "openai")
        if record.api == "openai":
            assert found["prompt_tokens"] == {"mean": 16, "min": 16, "max": 16}
    assert len({r.case_id for r in records}) == 2


def test_its_figures_are_those_of_a_study_s_cells(server: RunningServer) -> None:
    (record,) = run(server.url, batch_sizes=(2,))
    found = record.serving
    assert found is not None
    for name, key in (("ttft_ms", "ttft"), ("itl_ms", "itl"), ("tpot_ms", "tpot"), ("e2e_ms", "e2e")):
        # Tokens that came at once have no gaps between them; on a busy machine that can be all.
        assert found[key] is not None or key in ("itl", "tpot")
        for each in STATISTICS:
            assert statistic(record, find_figure(name), each) == (found[key][each] if found[key] else None)
    for name, key in (("throughput", "output_tok_s"), ("requests_s", "requests_s"), ("goodput", "goodput"), ("failed", "failed")):
        assert statistic(record, find_figure(name), "mean") == found[key]
        assert statistic(record, find_figure(name), "p99") is None
    assert find_figure("ms_per_token").of(measured(record)) == pytest.approx(1e3 / found["output_tok_s"])
    assert template_of("{e2e_ms.p99:.0f} of {failed:.0f}").text((12.3, 0.0)) == "12 of 0"


def test_a_rate_instead_of_a_number_at_a_time(server: RunningServer) -> None:
    (record,) = run(server.url, request_rate=200.0, requests=12)
    assert (record.status, record.request_rate, record.requests, record.batch_size) == ("ok", 200.0, 12, 1)
    assert record.serving is not None
    assert record.serving["served"] == 12


def test_prompts_differ_and_so_does_the_warm_up() -> None:
    prompts: list[Any] = []

    def script(what: str, body: Any, number: int) -> Any:
        if what == "GET /v1/models":
            return answer({"data": [{"id": "/home/somebody/the-model"}]})
        if what == "GET /info":
            return answer({}, 404)
        if not body.get("stream"):
            return answer({"usage": {"prompt_tokens": len(body["prompt"].split())}})
        prompts.append(body["prompt"])
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": 2}
        return stream({"choices": [{"text": "ab"}], "usage": usage})

    with ScriptedServer(script) as scripted:
        (record,) = run(scripted.url, batch_sizes=(2,), runs=5, warmups=2)
        assert scripted.most <= 2
        run(scripted.url, batch_sizes=(2, 3), runs=2, warmups=1)  # as servers keep beginnings: of other loads and calls neither
    assert record.model == "the-model"
    assert len(prompts) == 1 + 4 + 10 + 1 + (2 + 4) + (3 + 6)
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt.split()) for prompt in prompts} == {16}
    assert record.serving is not None
    assert "answers have 2 to 2 tokens, not 5" in " ".join(record.serving["notes"])


@pytest.mark.parametrize("refused", ["ignore_eos", "continuous_usage_stats"])
def test_a_server_that_takes_less_is_asked_for_less(refused: str) -> None:
    def script(what: str, body: Any, number: int) -> Any:
        if what == "GET /v1/models":
            return answer({"data": [{"id": "m"}]})
        if what == "GET /info":
            return answer("no object", 404)
        if refused in json.dumps(body):
            return answer({"error": {"message": f"unknown {refused}"}}, 400)
        return stream(*[{"choices": [{"text": "a"}]}] * 5, {"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": 5}})

    with ScriptedServer(script) as scripted:
        (record,) = run(scripted.url, batch_sizes=(1,), tokenizer="byte")
    assert record.status == "ok"
    assert record.serving is not None
    assert record.serving["length_forced"] == (refused != "ignore_eos")
    assert record.serving["output_tokens"]["min"] == 5


def test_some_that_fail_are_counted_apart_and_all_that_fail_are_an_error() -> None:
    def script(what: str, body: Any, number: int) -> Any:
        if what == "GET /info":
            return answer({"model_id": "m", "model_dtype": "torch.float16", "version": "3.3.7"})
        if what == "GET /v1/models":
            return answer({}, 404)
        asked.append(body)
        if (len(asked) > 1 and len(asked) % 2 == 0) or (every and len(asked) > 1):
            return answer({"error": "full", "error_type": "overloaded"}, 429)
        event = {"token": {"id": 1}, "generated_text": "a", "details": {"generated_tokens": 1}}
        return stream(event, done=False)

    every = False
    asked: list[Any] = []
    with ScriptedServer(script) as scripted:
        (some,) = run(scripted.url, batch_sizes=(1,), decode_length=1, requests=4, warmups=0)
        every, asked = True, []
        (none,) = run(scripted.url, batch_sizes=(1,), decode_length=1, requests=4, warmups=0)
    assert (some.status, some.dtype, some.stack_version) == ("ok", "float16", "tgi 3.3.7")
    assert some.serving is not None
    assert (some.serving["served"], some.serving["failed"], some.serving["failures"]) == (2, 2, {"http 429": 2})
    assert len(some.serving["ttft"]["samples"]) == 2
    assert (none.status, none.serving) == ("error", None)
    assert "none of 4 requests was served; the first: http 429" in str(none.evidence)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 50}, "--sequence-length 50 is not served: .* at most 40 tokens"),
        ({"decode_length": 50}, "a first request was not served .*must be at most 60 together"),
        ({"model": "other"}, "serves .*tiny-llama, not other; leave the model out"),
    ],
)
def test_what_the_server_does_not_serve_is_one_line(server: RunningServer, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(server.url, **changes)


def test_no_server_and_no_server_of_these_kinds_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--url http://127.0.0.1:1: no server answers there"):
        run("http://127.0.0.1:1")
    with ScriptedServer(lambda what, body, number: answer({}, 404)) as scripted:
        with pytest.raises(UserError, match="is no text-generation-inference or OpenAI server"):
            run(scripted.url)
        with pytest.raises(UserError, match="lists no model"):
            run(scripted.url, api="openai")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": None}, "add --url"),
        ({"backends": ("native",)}, "--url is of a server; add --backend http"),
        ({"backends": ("http", "native")}, "run the other backends by themselves"),
        ({"request_rate": 0.0}, "--request-rate must be a number above 0"),
        ({"requests": 0}, "--requests must be"),
        ({"slo_ttft_ms": -1.0}, "--slo-ttft must be"),
        ({"api": "soap"}, "--api soap is unknown"),
        ({"request_timeout": 0.0}, "--request-timeout must be"),
        ({"forward_only": True}, "--forward-only is not run by --backend http"),
        ({"top_k": 4}, "leave out --do-sample"),
        ({"admission": "row"}, "--admission"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        BenchRequest(**{"model": None, "batch_sizes": (1,), "backends": ("http",), "url": "http://h", **changes}).check()


def test_the_command_line(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bench", "--backend", "http", "--url", server.url, "--concurrency", "2", "--sequence-length", "12", "--decode-length", "4"]
    assert main([*given, "--runs", "2", "--slo-ttft", "60000", "--slo-tpot", "60000", "--output", str(tmp_path / "records.jsonl")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "| TTFT       | 2 at a time |" in out
    assert "| Load        | Requests | Failed | Requests/s |" in out
    (line,) = (tmp_path / "records.jsonl").read_text().splitlines()
    assert (json.loads(line)["slo_ttft_ms"], json.loads(line)["slo_tpot_ms"]) == (60000, 60000)
    assert main([*given, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["serving"]["unit"] == "ms"
    assert main(["bench", "--concurrency", "2"]) == 2
    assert "--concurrency is of a server" in capsys.readouterr().err


def test_a_key_is_sent_as_a_bearer_token(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_API_KEY", "k")
    assert run(server.url, batch_sizes=(1,))[0].status == "ok"
