"""Log-probabilities of OpenAI's completions, of what was written and of the prompt."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from completions import VARIED, ask, streamed
from running_server import RunningServer

from inferometer import LLM


@pytest.mark.parametrize("shaped", [{"temperature": 0.6, "top_k": 9, "seed": 5}, {"temperature": 1, "top_p": 0.6, "seed": 4}, VARIED])
def test_logprobs_are_the_models_own_whatever_shapes_the_choice(
    client: openai.OpenAI, chat_server: RunningServer, llm: LLM, shaped: dict[str, Any]
) -> None:
    given = ask(client, max_tokens=30, logprobs=3, **shaped).choices[0].logprobs
    native = chat_server.generate("hello there", max_new_tokens=30, details=True, **shaped)["details"]["tokens"]
    assert llm.tokenizer is not None
    assert given is not None
    # The same tokens, scored as a prompt, where nothing shapes anything.
    ids = [*llm.tokenizer.encode("hello there"), *(token["id"] for token in native)]
    scored = ask(client, ids, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
    assert scored is not None
    assert given.tokens == (scored.tokens or [])[-30:]
    assert given.token_logprobs == pytest.approx((scored.token_logprobs or [])[-30:], abs=1e-4)
    # The native route tells by what the token was chosen.
    assert [token["logprob"] for token in native] != pytest.approx(given.token_logprobs, abs=0.05)


def test_logprobs_are_those_of_the_native_route(client: openai.OpenAI, chat_server: RunningServer) -> None:
    parameters = {"max_new_tokens": 30, "details": True, "top_n_tokens": 4}
    native = chat_server.generate("hello there", **parameters)["details"]
    choice = ask(client, max_tokens=30, logprobs=4).choices[0]
    given = choice.logprobs
    assert given is not None
    assert given.tokens is not None
    assert given.top_logprobs is not None
    assert given.text_offset is not None
    assert given.token_logprobs == pytest.approx([token["logprob"] for token in native["tokens"]], abs=1e-4)
    for token, tops, native_tops in zip(given.tokens, given.top_logprobs, native["top_tokens"], strict=True):
        assert token in tops
        assert sorted(tops.values())[-1] == pytest.approx(native_tops[0]["logprob"], abs=1e-4)
        assert 1 <= len(tops) <= 5
    assert data(given.tokens).decode("utf-8", "replace") == choice.text
    assert given.text_offset == sorted(given.text_offset)
    for token, start, end in zip(given.tokens, given.text_offset, given.text_offset[1:], strict=False):
        if not token.startswith("bytes:") and end - start == len(token):
            assert choice.text[start:end] == token


def data(tokens: list[str]) -> bytes:
    """The bytes of some tokens by their names."""
    return b"".join(
        bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) if token.startswith("bytes:") else token.encode() for token in tokens
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_repeated_with_its_logprobs(client: openai.OpenAI, chat_server: RunningServer, stream: bool) -> None:
    prompt = "héllo the thing"
    native = chat_server.generate(prompt, max_new_tokens=3, details=True, decoder_input_details=True, do_sample=False)["details"]
    bare = ask(client, prompt, max_tokens=3).choices[0].text
    if stream:
        chunks = [chunk.choices[0] for chunk in streamed(client, prompt, max_tokens=3, echo=True, logprobs=1)]
        text = "".join(choice.text for choice in chunks)
        logprobs = [value for choice in chunks if choice.logprobs for value in choice.logprobs.token_logprobs or ()]
        offsets = [value for choice in chunks if choice.logprobs for value in choice.logprobs.text_offset or ()]
    else:
        choice = ask(client, prompt, max_tokens=3, echo=True, logprobs=1).choices[0]
        assert choice.logprobs is not None
        text, logprobs, offsets = choice.text, choice.logprobs.token_logprobs or [], choice.logprobs.text_offset or []
    assert text == prompt + bare
    expected = [token["logprob"] for token in [*native["prefill"], *native["tokens"]]]
    assert logprobs[0] is expected[0] is None
    assert logprobs[1:] == pytest.approx(expected[1:], abs=1e-4)
    assert offsets == sorted(offsets)
    assert offsets[-3] == len(prompt)
    assert ask(client, prompt, max_tokens=3, echo=True).choices[0].logprobs is None


def test_a_prompt_alone_can_be_scored(client: openai.OpenAI, llm: LLM) -> None:
    assert llm.tokenizer is not None
    for prompt in ("hello", llm.tokenizer.encode("hello")):
        answer = ask(client, prompt, max_tokens=0, echo=True, logprobs=0)
        assert answer.choices[0].text == "hello"
        assert answer.choices[0].logprobs is not None
        assert len(answer.choices[0].logprobs.token_logprobs or ()) == len(llm.tokenizer.encode("hello"))
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 0
    with pytest.raises(openai.BadRequestError, match="`max_tokens`"):
        ask(client, max_tokens=0)
