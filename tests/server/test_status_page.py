"""The page for people, and what it must not change for anybody else."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from running_server import RunningServer

from inferometer.server.status_page import wants_page

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (CHROMIUM, True),
        ("text/html", True),
        ("TEXT/HTML;q=1", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/*", False),
    ],
)
def test_only_who_names_html_gets_the_page(accept: str, page: bool) -> None:
    assert wants_page(accept) is page


def test_a_browser_gets_a_page_that_loads_nothing(server: RunningServer) -> None:
    answer = server.get("/", Accept=CHROMIUM)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = answer.body.decode()
    assert not re.search(r"https?://|//[a-z]|@import|url\(|<link|<img|<iframe|src=", page.replace("<!doctype", ""))
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]* (style|on[a-z]+)=", page)  # which that policy would not let work


def test_the_page_asks_for_what_there_is(server: RunningServer) -> None:
    page = server.get("/", Accept=CHROMIUM).body.decode()
    status = server.get("/status").json()
    shown = set(re.findall(r"\b(model|load|now|status|requests)\.(\w+)", page)) - {("status", "name")}
    for place, name in shown:
        assert name in (status if place == "status" else status[place]), (place, name)
    ids = set(re.findall(r'id="(\w+)"', page))
    assert set(re.findall(r'(?:at|put|bar)\("(\w+)"', page)) - {"step", "predicted", "bound"} <= ids
    for path in re.findall(r'href="(\w+)"', page):
        assert server.get(f"/{path}").status == 200


def test_everybody_else_gets_the_health_answer(server: RunningServer) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        answer = server.get("/", **headers)
        assert (answer.status, answer.body) == (200, b"")


def test_the_page_is_there_without_the_key_and_says_that_one_is_needed(keyed_server: RunningServer) -> None:
    assert keyed_server.get("/", Accept=CHROMIUM).status == 200
    answer = keyed_server.get("/status")
    status = answer.json()
    assert (status["needs_key"], status["health"]) == (True, "well")
    assert b"sesame" not in answer.body


def test_the_state_says_what_is_served(server: RunningServer) -> None:
    server.generate("hello", max_new_tokens=4)
    status = server.get("/status").json()
    assert (status["model"]["family"], status["model"]["dtype"], status["model"]["encoder"]) == ("llama", "float32", False)
    assert (status["limits"]["max_input_length"], status["limits"]["max_total_tokens"]) == (256, 512)
    assert (status["load"]["running"], status["load"]["permits_in_use"], status["load"]["pages_in_use"]) == (0, 0, 0)
    assert status["load"]["pages"] > 0
    assert status["requests"]["success"] > 0
    assert status["totals"]["emitted"] >= 4
    assert status["now"]["generated_tok_s"] > 0
