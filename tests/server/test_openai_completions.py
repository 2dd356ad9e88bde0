"""OpenAI's completions, asked by OpenAI's own client: what comes back for what was asked."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import openai
import pytest
from completions import VARIED, ask, streamed
from running_server import RunningServer

from inferometer import LLM, SamplingParams


def test_the_answer_is_the_engines(client: openai.OpenAI, llm: LLM, chat_server: RunningServer) -> None:
    (expected,) = llm.generate("hello there", SamplingParams(max_new_tokens=16, temperature=0))
    answer = ask(client)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == client.models.list().data[0].id
    assert [(choice.index, choice.text, choice.finish_reason, choice.logprobs) for choice in answer.choices] == [
        (0, expected.text, "length", None)
    ]
    assert answer.usage is not None
    prompt = len(expected.prompt_token_ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (prompt, 16, prompt + 16)
    chat_server.alive()


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=40, **VARIED)
    chunks = streamed(client, max_tokens=40, **VARIED)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_tells_its_usage_if_asked(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=9)
    *chunks, last = streamed(client, max_tokens=9, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks)
    *chunks, last = streamed(client, max_tokens=9, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk.usage.completion_tokens for chunk in [*chunks, last] if chunk.usage]
    assert len(counts) == len(chunks) + 1
    assert counts == sorted(counts)
    assert counts[-2:] == [9, 9]


def test_a_stream_ends_with_done_and_is_events(chat_server: RunningServer) -> None:
    answer = chat_server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "temperature": 0, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    *chunks, done = answer.events()
    assert done == "[DONE]"
    assert 1 <= len(chunks) <= 3  # tokens that have come in together go out together
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_choices_have_seeds_in_a_row(client: openai.OpenAI, stream: bool) -> None:
    alone = [ask(client, temperature=1, seed=7 + place, max_tokens=12).choices[0].text for place in range(3)]
    if stream:
        together = ["", "", ""]
        for chunk in streamed(client, temperature=1, seed=7, n=3, max_tokens=12):
            for choice in chunk.choices:
                together[choice.index] += choice.text
    else:
        together = [choice.text for choice in ask(client, temperature=1, seed=7, n=3, max_tokens=12).choices]
    assert together == alone
    assert len(set(alone)) == 3


def test_without_a_temperature_it_samples(client: openai.OpenAI) -> None:
    made = {
        client.completions.create(model="tgi", prompt="hello", max_tokens=16).choices[0].text,
        client.completions.create(model="tgi", prompt="hello", max_tokens=16).choices[0].text,
    }
    assert len(made) == 2
    assert ask(client, temperature=1, seed=-5).choices[0].text == ask(client, temperature=1, seed=-5).choices[0].text


def test_prompts_may_be_texts_or_tokens_one_or_several(client: openai.OpenAI, llm: LLM) -> None:
    assert llm.tokenizer is not None
    texts = ["hello", "the other thing"]
    ids = [llm.tokenizer.encode(text) for text in texts]
    first, second = (ask(client, text).choices[0].text for text in texts)
    assert ask(client, ids[0]).choices[0].text == first
    for prompt in (texts, ids):
        answer = ask(client, prompt, n=2)
        assert [(choice.index, choice.text) for choice in answer.choices] == [(0, first), (1, first), (2, second), (3, second)]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids[0]) + len(ids[1])
        assert answer.usage.completion_tokens == 4 * 16


def test_a_text_has_one_beginning(client: openai.OpenAI, llm: LLM) -> None:
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode("hello")
    assert ids[0] == llm.tokenizer.bos_token_id
    for prompt in ("hello", "<s>hello"):
        answer = ask(client, prompt, logprobs=0, echo=True, max_tokens=0)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids)
        assert answer.choices[0].logprobs is not None
        assert (answer.choices[0].logprobs.tokens or [])[:2] == ["<s>", "he"]


def test_a_stop_is_cut_off_wherever_it_stands(client: openai.OpenAI) -> None:
    text = ask(client, max_tokens=40, **VARIED).choices[0].text
    for start in range(0, len(text) - 3, 3):
        for length in (1, 3):
            stop = text[start : start + length]
            end = text.index(stop)
            whole = ask(client, max_tokens=40, stop=[stop], **VARIED).choices[0]
            assert (whole.text, whole.finish_reason) == (text[:end], "stop")
        chunks = [chunk.choices[0] for chunk in streamed(client, max_tokens=40, stop=stop, **VARIED)]
        assert "".join(choice.text for choice in chunks) == text[:end]
        assert chunks[-1].finish_reason == "stop"


def test_a_stop_on_the_last_token_wins_over_the_limit(client: openai.OpenAI) -> None:
    text = ask(client, max_tokens=12, **VARIED).choices[0].text
    stop = text[-2:]
    for limit in range(1, 13):
        cut = ask(client, max_tokens=limit, **VARIED).choices[0].text
        choice = ask(client, max_tokens=limit, stop=[stop], **VARIED).choices[0]
        assert (choice.text, choice.finish_reason) == (cut.partition(stop)[0], "stop" if stop in cut else "length")


def test_halves_of_characters_are_held_back(client: openai.OpenAI, llm: LLM) -> None:
    assert llm.tokenizer is not None
    bias = {str(token_id): 100 for token_id in llm.tokenizer.encode("👋漢é", special=False)}
    parameters = {"logit_bias": bias, "temperature": 1, "seed": 2, "n": 4, "max_tokens": 40, "ignore_eos": True}
    whole = [choice.text for choice in ask(client, **parameters).choices]
    assert {"\ufffd"} < set("".join(whole))  # some of it is broken, and some is not
    pieces: list[list[str]] = [[], [], [], []]
    for chunk in streamed(client, **parameters):
        for choice in chunk.choices:
            pieces[choice.index].append(choice.text)
    assert ["".join(each) for each in pieces] == whole


def test_what_only_begins_like_a_stop_is_not_lost(client: openai.OpenAI) -> None:
    text = ask(client, max_tokens=40, **VARIED).choices[0].text
    stops = [text[place : place + 3] + "\x00" for place in (0, 5, 11, len(text) - 3)]
    chunks = streamed(client, max_tokens=40, stop=stops, **VARIED)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "parameters",
    [
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.5},
        {"logit_bias": {33: 3.5, 40: -100}},
        {"top_p": 0.5, "temperature": 1, "seed": 1},
        {"temperature": 1.7, "seed": 3},
        {"top_k": 3, "temperature": 1, "seed": 3},
        {"top_p": 1.0, "temperature": 1, "seed": 1},
    ],
)
def test_a_parameter_does_what_the_engine_does(client: openai.OpenAI, llm: LLM, parameters: dict[str, Any]) -> None:
    own = {"temperature": 0.0, **parameters}
    (expected,) = llm.generate("the prompt", SamplingParams(max_new_tokens=24, do_sample=own["temperature"] > 0, **own))
    given = {**parameters, **({"logit_bias": {"33": 3.5, "40": -100}} if "logit_bias" in parameters else {})}
    assert ask(client, "the prompt", max_tokens=24, **given).choices[0].text == expected.text


def test_no_share_at_all_is_greedy_and_a_bias_decides(client: openai.OpenAI) -> None:
    greedy = ask(client).choices[0].text
    assert ask(client, temperature=1, top_p=0).choices[0].text == greedy
    assert ask(client, temperature=1, top_p=1e-9, seed=4).choices[0].text == greedy
    assert ask(client, logit_bias={"40": 100}, max_tokens=5, logprobs=0).choices[0].text == "GGGGG"


def test_the_likeliest_of_several_is_returned(client: openai.OpenAI) -> None:
    both = ask(client, temperature=1, seed=3, n=2, logprobs=0, max_tokens=12)
    best = ask(client, temperature=1, seed=3, best_of=2, logprobs=0, max_tokens=12)

    def mean(choice: Any) -> float:
        return math.fsum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    assert best.choices[0].text == max(both.choices, key=mean).text
    assert len(best.choices) == 1
    assert best.usage is not None
    assert best.usage.completion_tokens == 24


def test_choices_that_end_early_leave_the_others_alone(client: openai.OpenAI) -> None:
    whole = ask(client, temperature=1, seed=20, n=4, max_tokens=60, ignore_eos=True)
    stop = whole.choices[2].text[3:5]
    cut = ask(client, temperature=1, seed=20, n=4, max_tokens=60, ignore_eos=True, stop=[stop])
    for before, after in zip(whole.choices, cut.choices, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.finish_reason == ("stop" if stop in before.text else "length")


def test_extensions_of_other_servers(client: openai.OpenAI) -> None:
    assert ask(client, max_tokens=4, ignore_eos=True, min_tokens=4).choices[0].finish_reason == "length"
    first = ask(client, logprobs=0, max_tokens=1).choices[0]
    assert first.logprobs is not None
    answer = client.completions.create(model="tgi", prompt="hello there", temperature=0, extra_body={"stop_token_ids": list(range(2, 258))})
    assert answer.choices[0].finish_reason == "stop"


def test_many_at_once_equal_each_alone(chat_server: RunningServer, client: openai.OpenAI) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1, "seed": 3, "n": 2},
        {"temperature": 1.4, "seed": 4, "top_p": 0.7},
        {"frequency_penalty": 1, "stop": ["e"]},
    ]
    asked = [{"prompt": f"prompt number {n % 5}", "max_tokens": 5 + n, **kinds[n % len(kinds)]} for n in range(16)]
    alone = [[choice.text for choice in ask(client, **each).choices] for each in asked]

    async def stream(own: openai.AsyncOpenAI, each: dict[str, Any]) -> list[str]:
        texts = [""] * each.get("n", 1)
        async for chunk in await own.completions.create(**{"model": "tgi", "temperature": 0, **each, "stream": True}):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        return texts

    async def together() -> list[list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0) as own:
            return await asyncio.gather(*(stream(own, each) for each in asked))

    assert asyncio.run(together()) == alone
    chat_server.alive()


def test_the_list_of_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert (listed.object, listed.owned_by) == ("model", "inferometer")
    assert client.models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("another/model")
    assert caught.value.code == "model_not_found"
