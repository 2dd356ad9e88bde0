"""Three families over HTTP against transformers in float32: alone, in company, behind a prefix that is cached, and short of pages."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, lively, served, stripping_tokenizer
from open_requests import Frozen
from running_server import LIMITS, RunningServer, until
from scraped import Difference, scrape
from transformers import PreTrainedModel

FEW_PAGES = ("--max-batch-total-tokens", "768")
"""48 pages of 16 tokens: less than half of what the requests of a test want together."""


@dataclass(frozen=True)
class Pair:
    """A server, and the same model in transformers."""

    server: RunningServer
    model: PreTrainedModel

    def scores(self, ids: list[int]) -> torch.Tensor:
        """Log-probabilities, float32 (tokens, vocabulary), of the token behind each."""
        with torch.inference_mode():
            return torch.log_softmax(self.model(torch.tensor([ids])).logits[0].float(), -1)

    def check(self, answer: Any, *, prefill: bool = False) -> None:
        """Asserts that every token of a greedy answer is transformers' own choice behind what came before, with its log-probability."""
        details = answer["details"]
        prompt, tokens = details["prefill"], details["tokens"]
        scores = self.scores([token["id"] for token in prompt] + [token["id"] for token in tokens])
        chosen = scores[len(prompt) - 1 : -1]
        assert [token["id"] for token in tokens] == chosen.argmax(-1).tolist()
        assert [token["logprob"] for token in tokens] == pytest.approx(chosen.amax(-1).tolist(), abs=1e-4)
        if prefill:
            assert prompt[0]["logprob"] is None
            expected = [scores[place, token["id"]].item() for place, token in enumerate(prompt[1:])]
            assert [token["logprob"] for token in prompt[1:]] == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One of each family. GPT-2's tokenizer knows texts without a token."""
    folder = tmp_path_factory.mktemp("lively") / request.param
    model = lively(request.param, folder)
    tokenizer = "byte" if request.param != "gpt2" else str(stripping_tokenizer(folder.parent / "strips"))
    with served(folder, *LIMITS, *FEW_PAGES, "--tokenizer", tokenizer) as server:
        yield Pair(server, model)


def words(dice: random.Random, length: int) -> str:
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz.,!?", k=length))


def ask(pair: Pair, inputs: str, new: int = 12) -> Any:
    """An answer with what its prompt was worth, for which all of the prompt is computed."""
    return pair.server.generate(inputs, max_new_tokens=new, details=True, decoder_input_details=True)


def ask_plainly(pair: Pair, inputs: str, new: int = 12) -> Any:
    """An answer with the ids of its prompt alone, of which the cache may have any part."""
    answer = pair.server.generate(inputs, max_new_tokens=new, details=True)
    return {**answer, "details": {**answer["details"], "prefill": pair.server.post("/tokenize", {"inputs": inputs}).json()}}


def test_every_token_is_transformers_choice_from_one_token_to_the_limit(pair: Pair) -> None:
    dice = random.Random(1)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, *(dice.randint(3, 250) for _ in range(24))]
    prompts = [words(dice, length) for length in lengths]
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda prompt: ask(pair, prompt), prompts):
            pair.check(answer, prefill=True)
    pair.server.alive()


def test_prompt_log_probabilities_do_not_depend_on_what_is_cached(pair: Pair) -> None:
    dice = random.Random(2)
    text = words(dice, 70)
    lengths = [33, 15, 32, 16, 31, 17, 70, 64, 48]
    for length in [*lengths, *reversed(lengths)]:
        answer = ask(pair, text[:length], 3)
        assert len(answer["details"]["prefill"]) == length
        pair.check(answer, prefill=True)
    pair.server.alive()


def test_a_cached_prefix_changes_nothing_and_is_used(pair: Pair) -> None:
    dice = random.Random(3)
    moved = Difference(pair.server)
    beginning = words(dice, 96)
    texts = set()
    for _ in range(4):
        answer = ask_plainly(pair, beginning, 8)
        pair.check(answer)
        texts.add(answer["generated_text"])
    assert len(texts) == 1
    for shared in (15, 16, 17, 47, 48, 49, 95, 96):
        pair.check(ask_plainly(pair, beginning[:shared] + words(dice, 9), 6))
    # Pages are taken from the cache by others, and computed again.
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: pair.server.generate(words(random.Random(_), 200), max_new_tokens=40), range(6)))
    assert {pair.server.generate(beginning, max_new_tokens=8)["generated_text"]} == texts
    moved.look()
    assert moved("inferometer_prefix_cache_hit_tokens_total") >= 3 * 80 + 16 + 16 + 32 + 48 + 48 + 80 + 96
    pair.server.alive()


def test_who_leaves_in_the_middle_of_a_prompt_spoils_nothing(pair: Pair) -> None:
    prompt = words(random.Random(4), 250)
    for _ in range(3):
        connection = pair.server.connect()
        body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 100}})
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        connection.close()
    pair.check(ask(pair, prompt), prefill=True)
    until(lambda: scrape(pair.server)["inferometer_kv_pages_in_use"] == 0)
    pair.server.alive()


def test_a_needle_is_the_same_alone_and_among_others_that_come_and_go(pair: Pair) -> None:
    dice = random.Random(5)
    needle = words(dice, 40)
    alone = ask_plainly(pair, needle, 30)
    pair.check(alone)

    def one(number: int) -> Any:
        if number % 6 == 3:
            return ask_plainly(pair, needle, 30)
        own = random.Random(number)
        pair.server.generate(words(own, own.randint(1, 200)), max_new_tokens=own.randint(1, 30), do_sample=number % 2 == 0)
        return None

    with ThreadPoolExecutor(12) as pool:
        found = [answer for answer in pool.map(one, range(36)) if answer is not None]
    assert len(found) == 6
    for answer in found:
        assert [token["id"] for token in answer["details"]["tokens"]] == [token["id"] for token in alone["details"]["tokens"]]
        pair.check(answer)
    pair.server.alive()


def test_short_of_pages_every_request_gets_what_it_would_get_alone(pair: Pair) -> None:
    wanted = []

    def one(number: int) -> tuple[Any, int]:
        own = random.Random(100 + number)
        new = own.randint(30, 120)
        prompt = words(own, own.randint(20, 120))
        wanted.append(len(prompt) + new)
        if number % 2:
            return ask_plainly(pair, prompt, new), new
        events = pair.server.stream(prompt, max_new_tokens=new, details=True)
        assert [event["index"] for event in events] == list(range(1, len(events) + 1))  # none is sent twice, none is lost
        prefill = [{"id": token["id"]} for token in pair.server.post("/tokenize", {"inputs": prompt}).json()]
        return {"details": {"prefill": prefill, "tokens": [event["token"] for event in events]}}, new

    with ThreadPoolExecutor(24) as pool:
        with Frozen(pair.server):  # so that all want their pages at once
            asked = [pool.submit(one, number) for number in range(24)]
            until(lambda: scrape(pair.server)["inferometer_permits_in_use"] == 24)
        for answer, new in [each.result() for each in asked]:
            pair.check(answer)
            tokens = answer["details"]["tokens"]
            assert len(tokens) == new or tokens[-1]["id"] == 299
    assert sum(wanted) > 3 * 768  # tokens, of which the pages hold 768
    after = scrape(pair.server)
    assert after["inferometer_kv_pages_in_use"] == after["inferometer_requests_running"] == 0
    pair.server.alive()


CLIENTS = """
import json, socket, sys, time
held = []
for number in range(16):
    body = json.dumps({"inputs": f"client {number}", "parameters": {"max_new_tokens": 500}}).encode()
    path = "/generate_stream" if number % 2 else "/generate"
    head = f"POST {path} HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].sendall(head.encode() + body)
time.sleep(600)
"""


def test_a_client_that_is_killed_takes_its_requests_along(pair: Pair) -> None:
    moved = Difference(pair.server)
    with Frozen(pair.server):  # so that some run and some wait when it happens
        client = subprocess.Popen([sys.executable, "-c", CLIENTS, str(pair.server.port)])
        until(lambda: scrape(pair.server)["inferometer_permits_in_use"] == 16)
        client.send_signal(signal.SIGKILL)
        client.wait(20)
        until(lambda: scrape(pair.server)["inferometer_permits_in_use"] == 0)
    until(lambda: scrape(pair.server)["inferometer_kv_pages_in_use"] == scrape(pair.server)["inferometer_requests_running"] == 0)
    moved.look()
    assert moved('tgi_request_failure{err="dropped"}') == 16
    emitted = moved.after["inferometer_emitted_tokens_total"]
    assert scrape(pair.server)["inferometer_emitted_tokens_total"] == emitted
    pair.server.alive()


def test_best_of_wins_by_the_mean_of_what_is_told(pair: Pair) -> None:
    for seedless in ({"do_sample": True}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "typical_p": 0.9}):
        details = pair.server.generate("best of two", best_of=2, max_new_tokens=9, details=True, **seedless)["details"]
        (other,) = details["best_of_sequences"]
        means = [sum(token["logprob"] for token in each["tokens"]) / len(each["tokens"]) for each in (details, other)]
        assert means[0] >= means[1]
        assert details["seed"] != other["seed"]
        for each in (details, other):
            again = pair.server.generate(
                "best of two", max_new_tokens=9, details=True, seed=each["seed"], **{**seedless, "do_sample": True}
            )
            assert [token["id"] for token in again["details"]["tokens"]] == [token["id"] for token in each["tokens"]]
    pair.server.alive()


def test_a_text_without_a_token_is_refused(pair: Pair) -> None:
    empty = pair.model.config.model_type == "gpt2"
    for inputs in (" ", "\n \t", "\u2003"):
        native = pair.server.post("/generate", {"inputs": inputs, "parameters": {"max_new_tokens": 1}})
        completion = pair.server.post("/v1/completions", {"prompt": inputs, "max_tokens": 1})
        assert (native.status, completion.status) == ((422, 400) if empty else (200, 200))
        if empty:
            assert native.json() == {"error": "the prompt has no tokens", "error_type": "validation"}
    pair.server.alive()
