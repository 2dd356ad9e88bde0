"""The OpenAPI document says what there is, the page at /docs shows it, and whatever the document allows is answered as it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer, dummy

ROUTES = {
    "/": {"get", "post"},
    "/docs": {"get"},
    "/generate": {"post"},
    "/generate_stream": {"post"},
    "/health": {"get"},
    "/info": {"get"},
    "/invocations": {"post"},
    "/metrics": {"get"},
    "/ping": {"get"},
    "/status": {"get"},
    "/tokenize": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/embeddings": {"post"},
    "/v1/models": {"get"},
    "/v1/models/{model_id}": {"get"},
}


def document(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/api-doc/openapi.json").json()
    return found


def test_the_document_names_every_route_with_what_it_takes_gives_and_fails_with(server: RunningServer) -> None:
    told = document(server)
    assert {path: set(operations) for path, operations in told["paths"].items()} == ROUTES
    schemas = told["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(told)))
    assert named <= set(schemas)
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"]
            responses = operation["responses"]
            assert {"200", "401", "431"} <= set(responses)
            error = "OpenAIError" if path.startswith("/v1/") else "Error"
            for status, response in responses.items():
                if status != "200":
                    assert response["content"] == {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
            if method == "post":
                assert {"400", "413", "415", "429", "503"} <= set(responses)
                assert ("422" in responses) is not path.startswith("/v1/")
                body = operation["requestBody"]["content"]["application/json"]
                assert set(body["example"]) <= set(schemas[body["schema"]["$ref"].rpartition("/")[2]]["properties"])


def test_every_example_is_served(chat_server: RunningServer) -> None:
    for path, operations in document(chat_server)["paths"].items():
        if "post" not in operations or path == "/v1/embeddings":
            continue
        body = operations["post"]["requestBody"]["content"]["application/json"]["example"]
        assert chat_server.post(path, body).status == 200, path
    chat_server.alive()


def test_a_method_that_an_address_has_not_is_told_those_that_it_has(server: RunningServer) -> None:
    for path, methods in ROUTES.items():
        answer = server.request("DELETE", path.replace("{model_id}", "x"))
        assert answer.status == 405
        allowed = {method.strip().lower() for method in answer.headers["allow"].split(",")}
        assert allowed == (methods | {"head"} if "get" in methods else methods)


def test_the_page_shows_the_document_and_loads_nothing(server: RunningServer) -> None:
    answer = server.get("/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = answer.body.decode()
    told = document(server)
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            assert f'<b class="{method}">{method.upper()}</b> <code>{path}</code> {operation["summary"]}' in page
    for name in told["components"]["schemas"]:
        assert f'<details id="{name}">' in page
    assert set(re.findall(r'href="#(\w+)"', page)) <= set(told["components"]["schemas"])
    assert "/api-doc/openapi.json" in page
    assert "{{" not in page
    # Nothing but addresses of this server, in a page that could not load or run anything else if it tried.
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|src=", page)
    assert set(re.findall(r"https?://[^/ ]+", page)) == {"http://localhost:3000"}
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "script-src 'none'" in answer.headers["content-security-policy"]


@pytest.fixture(scope="module")
def brief(chat_model: Path) -> Iterator[RunningServer]:
    """A server whose answers are short, whatever is asked for."""
    limits = ("--max-input-length", "40", "--max-total-tokens", "48", "--gpu-memory", "0.25")
    with dummy(chat_model, *limits, "--tokenizer", str(chat_model), forked=True) as running:
        yield running


def schemathesis(server: RunningServer, folder: Path, phases: str, *only: str) -> dict[tuple[str, str], set[int]]:
    """Runs it over the document with every check that holds here, and returns the statuses that each operation was answered with.

    The one check left out wants every value that a schema allows to be served: rules that tie fields together are no part of it.
    """
    report = folder / "report.ndjson"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/api-doc/openapi.json"),
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--suppress-health-check", "all"),
        *("--phases", phases, "--max-examples", "6", "--seed", "7", "--continue-on-failure", "--no-color"),
        *("--report", "ndjson", "--report-ndjson-path", str(report), *only),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    statuses: dict[tuple[str, str], set[int]] = defaultdict(set)
    for line in report.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for exchange in recorder.get("interactions", {}).values():
            if exchange["response"] is not None:
                method, path = recorder["label"].split()
                statuses[method.lower(), path].add(exchange["response"]["status_code"])
    return statuses


OPERATIONS = {(method, path) for path, methods in ROUTES.items() for method in methods}


def without(statuses: dict[tuple[str, str], set[int]], hundred: int) -> set[tuple[str, str]]:
    """The operations that were never answered with a status of that hundred."""
    return {each for each in OPERATIONS if not any(status // 100 == hundred for status in statuses[each])}


def test_whatever_the_document_allows_is_answered_as_it_says(brief: RunningServer, encoder_server: RunningServer, tmp_path: Path) -> None:
    statuses = schemathesis(brief, tmp_path, "examples,fuzzing")
    assert without(statuses, 2) == {("post", "/v1/embeddings")}  # which a decoder has not
    assert {method for method, _ in without(statuses, 4)} <= {"get"}
    statuses = schemathesis(encoder_server, tmp_path, "examples,fuzzing", "--include-path", "/v1/embeddings")
    assert {status // 100 for status in statuses["post", "/v1/embeddings"]} == {2, 4}
    brief.alive()


@pytest.mark.slow
def test_every_corner_of_the_document_is_answered_as_it_says(brief: RunningServer, encoder_server: RunningServer, tmp_path: Path) -> None:
    statuses = schemathesis(brief, tmp_path, "examples,coverage,fuzzing", "--max-examples", "60")
    assert without(statuses, 2) == {("post", "/v1/embeddings")}
    assert without(statuses, 4) <= {("get", "/")}  # a method that the address has not counts for the other one that it has
    statuses = schemathesis(encoder_server, tmp_path, "examples,coverage,fuzzing")
    assert {status // 100 for status in statuses["post", "/v1/embeddings"]} == {2, 4}
    assert without(statuses, 4) <= {("get", "/")}
    brief.alive()
