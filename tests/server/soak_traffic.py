"""Random traffic of all kinds against one server, with a tally of what every request was answered."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from running_server import PLAIN, RunningServer

CLIENTS = 8
BURST = 40

BAD: list[tuple[str, bytes, str]] = [
    ("/generate", b"{", "application/json"),
    ("/generate", b"[]", "application/json"),
    ("/generate", b'{"inputs": 7}', "application/json"),
    ("/generate", b'{"inputs": ""}', "application/json"),
    ("/generate", b'{"inputs": "x", "parameters": {"top_p": NaN}}', "application/json"),
    ("/generate", b'{"inputs": "x", "parameters": {"max_new_tokens": 18446744073709551616}}', "application/json"),
    ("/generate", b'{"inputs": "x", "parameters": {"temperature": -1}}', "application/json"),
    ("/generate", b'{"inputs": "\\ud800"}', "application/json"),
    ("/generate", b'{"inputs": "x"}', "text/plain"),
    ("/generate", b'{"inputs": "' + b"x" * 30_000 + b'"}', "application/json"),
    ("/", b"\xff\xfe", "application/json"),
    ("/v1/completions", b'{"prompt": []}', "application/json"),
    ("/v1/completions", b'{"prompt": "x", "n": 0}', "application/json"),
    ("/v1/completions", b'{"prompt": "x", "logit_bias": {"AI": 1}}', "application/json"),
    ("/v1/chat/completions", b'{"messages": "x"}', "application/json"),
]
"""(path, body, content type) of requests that break a rule before they could cost anything."""


class Traffic:
    """Clients that do something random, each after the other, for some seconds.

    sent: requests for work of the engine. answers: what they were answered: success, refused (they broke a rule), overloaded, or left
    (the client went away, so that nobody knows). wrong: answers that should not have been, in words; empty if all is well.
    """

    def __init__(self, server: RunningServer, seed: int) -> None:
        self.sent = 0
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._server = server
        self._seed = seed
        self._lock = threading.Lock()
        self._plain = server.post("/generate", PLAIN).json()["generated_text"]

    def run(self, seconds: float) -> None:
        """Returns when the time is over and every client is done."""
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(CLIENTS) as pool:
            for client in [pool.submit(self._client, number, until) for number in range(CLIENTS)]:
                client.result()

    def _client(self, number: int, until: float) -> None:
        dice = random.Random(f"{self._seed} {number}")
        acts: list[tuple[Callable[[random.Random], None], int]] = [
            (self._whole, 8),
            (self._stream, 8),
            (self._plain_one, 2),
            (self._best_of, 2),
            (self._completion, 6),
            (self._completion_stream, 6),
            (self._bad, 10),
            (self._leave_stream, 6),
            (self._leave_whole, 4),
            (self._look, 2),
            (self._burst, 1),
        ]
        while time.monotonic() < until:
            (act,) = dice.choices([act for act, _ in acts], [weight for _, weight in acts])
            act(dice)

    # What clients do.

    def _whole(self, dice: random.Random) -> None:
        body = native(dice)
        status, data = self._post("/generate", body)
        if self._took(status, data, {200: "success", 429: "overloaded"}):
            details = json.loads(data)["details"]
            if details["generated_tokens"] != len(details["tokens"]):
                self._complain(f"{details['generated_tokens']} tokens, {len(details['tokens'])} listed")

    def _stream(self, dice: random.Random) -> None:
        status, data = self._post("/generate_stream", native(dice))
        events = [json.loads(part[5:]) for part in data.decode().split("\n\n") if part.startswith("data:")]
        if status != 200 or not events:
            self._complain(f"/generate_stream: {status} with {len(events)} events")
            return
        *before, last = events
        if any("token" not in event or event["generated_text"] is not None for event in before):
            self._complain("/generate_stream: more than one last event")
        if "token" in last:
            self._note("success")
            text = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
            if last["generated_text"] != text:
                self._complain("/generate_stream: the texts of the tokens are not the text")
        else:
            self._note({"overloaded": "overloaded"}.get(last["error_type"], last["error_type"]))

    def _plain_one(self, dice: random.Random) -> None:
        status, data = self._post("/generate", PLAIN)
        if self._took(status, data, {200: "success", 429: "overloaded"}) and json.loads(data)["generated_text"] != self._plain:
            self._complain("a plain request has another answer in company than alone")

    def _best_of(self, dice: random.Random) -> None:
        parameters = {"best_of": 2, "do_sample": True, "max_new_tokens": dice.randint(1, 20)}
        status, data = self._post("/generate", {"inputs": "best of two", "parameters": parameters})
        self._took(status, data, {200: "success", 429: "overloaded"})

    def _completion(self, dice: random.Random) -> None:
        n = dice.choice([1, 1, 3])
        body = {"model": "m", "prompt": words(dice), "max_tokens": dice.randint(1, 60), "n": n, "temperature": dice.choice([0, 1.2])}
        status, data = self._post("/v1/completions", body)
        if self._took(status, data, {200: "success", 429: "overloaded"}) and len(json.loads(data)["choices"]) != n:
            self._complain(f"/v1/completions: not {n} choices")

    def _completion_stream(self, dice: random.Random) -> None:
        body = {"model": "m", "prompt": words(dice), "max_tokens": dice.randint(1, 60), "stream": True}
        status, data = self._post("/v1/completions", body)
        if self._took(status, data, {200: "success", 429: "overloaded"}):
            pieces = [part for part in data.decode().split("\n\n") if part]
            if pieces[-1] != "data: [DONE]" or pieces.count("data: [DONE]") != 1:
                self._complain(f"/v1/completions: a stream that ends with {pieces[-1]!r}")

    def _bad(self, dice: random.Random) -> None:
        path, body, media = dice.choice(BAD)
        with self._lock:
            self.sent += 1
        answer = self._server.request("POST", path, body, {"Content-Type": media})
        if self._took(answer.status, answer.body, dict.fromkeys((400, 413, 415, 422), "refused") | {429: "overloaded"}):
            json.loads(answer.body)

    def _leave_stream(self, dice: random.Random) -> None:
        path = dice.choice(["/generate_stream", "/v1/completions"])
        body = {"prompt": words(dice), "model": "m", "max_tokens": 300, "stream": True} if path != "/generate_stream" else long(dice)
        connection, response = self._open(path, body)
        for _ in range(dice.randint(0, 12)):
            if not response.readline():
                break
        response.close()
        connection.close()
        self._note("left")

    def _leave_whole(self, dice: random.Random) -> None:
        connection = self._send("/generate", long(dice))
        time.sleep(dice.random() / 5)
        connection.close()
        self._note("left")

    def _look(self, dice: random.Random) -> None:
        path = dice.choice(["/health", "/metrics", "/status", "/info", "/", "/v1/models", "/api-doc/openapi.json"])
        answer = self._server.get(path)
        if answer.status != 200:
            self._complain(f"GET {path}: {answer.status}")

    def _burst(self, dice: random.Random) -> None:
        with ThreadPoolExecutor(BURST) as pool:
            for status, data in pool.map(lambda _: self._post("/generate", native(random.Random())), range(BURST)):
                self._took(status, data, {200: "success", 429: "overloaded"})

    # What they have in common.

    def _send(self, path: str, body: Any) -> HTTPConnection:
        with self._lock:
            self.sent += 1
        connection = self._server.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def _open(self, path: str, body: Any) -> tuple[HTTPConnection, HTTPResponse]:
        connection = self._send(path, body)
        return connection, connection.getresponse()

    def _post(self, path: str, body: Any) -> tuple[int, bytes]:
        connection, response = self._open(path, body)
        data = response.read()
        connection.close()
        return response.status, data

    def _took(self, status: int, data: bytes, known: dict[int, str]) -> bool:
        """Notes an answer; whether it is a success."""
        word = known.get(status)
        if word is None:
            self._complain(f"{status} {data[:200]!r}")
            word = "strange"
        self._note(word)
        return word == "success"

    def _note(self, word: str) -> None:
        with self._lock:
            self.answers[word] += 1

    def _complain(self, words: str) -> None:
        with self._lock:
            self.wrong.append(words)


def words(dice: random.Random) -> str:
    """A prompt; some begin alike, so that the prefix cache has something to do."""
    beginning = dice.choice(["", "Once upon a time there was a harbour master who ", "été 日本語 🙂 "])
    return beginning + "".join(dice.choices("abcdefgh ", k=dice.randint(1, 120)))


def native(dice: random.Random) -> dict[str, Any]:
    """A request that is in order."""
    parameters: dict[str, Any] = {"max_new_tokens": dice.randint(1, 60), "details": True}
    if dice.random() < 0.5:
        parameters |= {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": dice.randrange(2**32)}
    if dice.random() < 0.3:
        parameters |= {"stop": [dice.choice("aeiou"), "\n"], "repetition_penalty": 1.1}
    if dice.random() < 0.2:
        parameters |= {"decoder_input_details": False, "top_n_tokens": 3}
    return {"inputs": words(dice), "parameters": parameters}


def long(dice: random.Random) -> dict[str, Any]:
    """A request that goes on for a while."""
    return {"inputs": words(dice), "parameters": {"max_new_tokens": 300}}
