"""Keys and permits as OpenAI's client meets them: each sequence needs one, and every one comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from open_requests import Frozen
from running_server import RunningServer, until


@pytest.fixture(scope="module")
def client(keyed_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key="sesame", max_retries=0, timeout=60) as made:
        yield made


def complete(client: openai.OpenAI, **parameters: Any) -> Any:
    return client.completions.create(**{"model": "tgi", "prompt": "x", "temperature": 0, "max_tokens": 4, **parameters})


def free(client: openai.OpenAI) -> bool:
    """Whether four sequences are let in."""
    try:
        return len(complete(client, n=4).choices) == 4
    except openai.RateLimitError:
        return False


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        complete(client.with_options(api_key="wrong"))
    assert (caught.value.type, caught.value.code) == ("authentication_error", "invalid_api_key")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert free(client)


def test_every_sequence_needs_a_permit(client: openai.OpenAI, keyed_server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match="asks for 5 sequences, and the server takes at most 4"):
        complete(client, n=5)
    with Frozen(keyed_server):
        counted = {"include_usage": True}
        stream = complete(client, stream=True, n=2, max_tokens=2, stream_options=counted)  # its head has come: two permits are taken
        for more in ({"n": 3}, {"n": 3, "stream": True}, {"prompt": ["a", "b", "c"]}):
            with pytest.raises(openai.RateLimitError, match="overloaded"):
                complete(client, **more)
    chunks = list(stream)  # two or four of tokens: what has come by the time that one is written goes with it
    assert sorted(choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason) == [0, 1]
    assert chunks[-1].usage.completion_tokens == 4
    assert free(client)


def test_a_burst_gets_one_answer_each(client: openai.OpenAI) -> None:
    def status(_: int) -> int:
        try:
            return 200 if complete(client, max_tokens=100).choices else 0
        except openai.RateLimitError as error:
            return error.status_code

    with ThreadPoolExecutor(30) as pool:
        statuses = Counter(pool.map(status, range(30)))
    assert set(statuses) <= {200, 429}
    assert statuses.total() == 30
    assert statuses[200] >= 4
    until(lambda: free(client))


def test_who_stops_waiting_gives_the_permits_back(client: openai.OpenAI, keyed_server: RunningServer) -> None:
    for stream in (False, True):
        with Frozen(keyed_server), pytest.raises(openai.APITimeoutError):
            for _ in complete(client.with_options(timeout=0.3), n=4, stream=stream):
                pass
        until(lambda: free(client))


def test_who_leaves_in_the_middle_of_a_stream_gives_the_permits_back(client: openai.OpenAI) -> None:
    with complete(client, n=4, stream=True, max_tokens=400, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    until(lambda: free(client))
