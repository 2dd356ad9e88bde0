"""OpenAI's chat, asked by OpenAI's own client: the template, the tokens, the stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import RunningServer
from served_tokenizer import BEGIN, served_tokenizer

from inferometer import LLM, SamplingParams
from tiny_models import tiny_model

MESSAGES: list[Any] = [{"role": "system", "content": "You are tiny."}, {"role": "user", "content": "héllo 👋"}]
RENDERED = "<system>You are tiny.\n<user>héllo 👋\n<assistant>"


def ask(client: openai.OpenAI, messages: Any = MESSAGES, **parameters: Any) -> Any:
    """A chat completion, greedy unless told otherwise."""
    return client.chat.completions.create(**{"model": "tgi", "messages": messages, "temperature": 0, "max_tokens": 24, **parameters})


def test_the_answer_is_the_engines_behind_the_template_with_one_beginning(
    client: openai.OpenAI, llm: LLM, chat_server: RunningServer
) -> None:
    assert llm.tokenizer is not None
    ids = [BEGIN, *llm.tokenizer.encode(RENDERED, special=False)]
    (expected,) = llm.generate([ids], SamplingParams(max_new_tokens=24, temperature=0))
    answer = ask(client)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (len(ids), 24, len(ids) + 24)
    chat_server.alive()


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI) -> None:
    parameters = {"n": 2, "temperature": 1, "seed": 11, "stop": ["e"]}
    ask(client, **parameters)  # so that the prefix cache has the prompt both times, which the usage tells
    whole = ask(client, **parameters)
    first, *chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **parameters))
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert first.object == "chat.completion.chunk"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    texts, reasons = ["", ""], [None, None]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_logprobs_come_with_bytes(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert len(content) == 24
    assert b"".join(bytes(token.bytes) for token in content).decode("utf-8", "replace") == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # it is greedy
        assert token.top_logprobs[0].logprob == token.logprob
        assert [top.logprob for top in token.top_logprobs] == sorted((top.logprob for top in token.top_logprobs), reverse=True)
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    streamed = [
        token
        for chunk in ask(client, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    # To what rounding leaves: the second time its prompt is found in the prefix cache, and another product of other rows runs.
    assert [token.token for token in streamed] == [token.token for token in content]
    assert [[top.token for top in token.top_logprobs] for token in streamed] == [
        [top.token for top in token.top_logprobs] for token in content
    ]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in content], abs=1e-5)


def test_content_may_come_in_parts(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "hél"}, {"type": "text", "text": "lo 👋"}]
    assert ask(client, [MESSAGES[0], {"role": "user", "content": parts}]).choices == ask(client).choices


def test_the_newer_name_of_the_limit_wins_and_without_one_there_is_all_the_room(client: openai.OpenAI) -> None:
    assert ask(client, max_completion_tokens=3).usage.completion_tokens == 3
    answer = client.chat.completions.create(
        model="tgi", messages=MESSAGES, temperature=0, logit_bias={"40": 100}, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_what_the_template_refuses_is_told_in_its_own_words(client: openai.OpenAI, chat_server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match="this model does not begin") as caught:
        ask(client, [{"role": "assistant", "content": "Xylophone-4711"}])
    assert caught.value.param == "messages"
    assert "Xylophone" not in str(caught.value)
    chat_server.alive()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["text"]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
        {"content": "x"},
        {"role": "", "content": "x"},
        {"role": 3, "content": "x"},
        "text",
        None,
    ],
)
def test_what_is_no_message_is_refused(client: openai.OpenAI, chat_server: RunningServer, message: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, [{"role": "user", "content": "Xylophone-4711"}, message])
    assert caught.value.param == "messages"
    assert "number 1" in str(caught.value)
    assert "Xylophone" not in str(caught.value)
    chat_server.alive()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"guided_json": {"type": "object"}},
        {"guided_regex": "[a-z"},
        {"structured_outputs": {"choice": ["a"]}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"adapter_id": "mine"},
        {"lora_request": {"name": "mine"}},
        {"chat_template": "{{ 7 * 7 }}"},
        {"use_beam_search": True},
        {"min_p": 0.1},
        {"web_search_options": {}},
        {"guided_json": {}},
        {"skip_special_tokens": False},
        {"include_stop_str_in_output": True},
        {"add_generation_prompt": False},
        {"echo": True},
    ],
)
def test_what_would_change_the_answer_and_is_not_run_is_refused_by_name(
    client: openai.OpenAI, chat_server: RunningServer, fields: dict[str, Any]
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="this server does not support") as caught:
            client.chat.completions.create(model="tgi", messages=MESSAGES, stream=stream, extra_body=fields)
        assert caught.value.param in fields
        assert caught.value.code == "unsupported_parameter"
    chat_server.alive()


@pytest.mark.parametrize("name", ["adapter-x", "sql-lora", "my/LoRA-7b", "qlora", "served:mine"])
def test_an_adapter_asked_for_by_the_models_name_is_refused(client: openai.OpenAI, chat_server: RunningServer, name: str) -> None:
    served = client.models.list().data[0].id
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="this server does not support adapters") as caught:
            ask(client, model=name.replace("served", served), stream=stream)
        assert (caught.value.param, caught.value.code) == ("model", "unsupported_parameter")
    chat_server.alive()


@pytest.mark.parametrize("name", ["tgi", "", "gpt-4o", "explorator", "adaptera", "x" * 10_000])
def test_any_other_name_means_the_one_model(client: openai.OpenAI, name: str) -> None:
    answer = ask(client, model=name)
    assert answer.choices == ask(client).choices
    assert answer.model == client.models.list().data[0].id


def test_what_asks_for_nothing_new_is_passed_over(client: openai.OpenAI) -> None:
    fields = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "adapter_id": None,
        "min_p": 0,
        "chat_template_kwargs": {},
        "skip_special_tokens": True,
        "suffix": "",
    }
    assert ask(client, extra_body=fields).choices == ask(client).choices


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, "has `tool_calls`: this server does not support calling tools"),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL]}, "has `tool_calls`: this server does not support calling tools"),
        ({"role": "user", "content": "x", "tool_calls": 5}, "has `tool_calls`: this server does not support calling tools"),
        ({"role": "user", "content": "x", "tool_call_id": "call_1"}, "has `tool_call_id`: this server does not support calling tools"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "has `function_call`: this server does not support calling functions"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "has `audio`: this server does not support audio"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "has `refusal`: this server does not support a refusal in place"),
        ({"role": "assistant", "content": "x", "prefix": True}, "has `prefix`: this server does not support continuing"),
        (
            {"role": "tool", "content": "x", "tool_call_id": "call_1"},
            "none of system, developer, user and assistant: this server does not support",
        ),
        ({"role": "function", "content": "x", "name": "f"}, "none of system, developer, user and assistant: this server does not support"),
        ({"role": "nonsense", "content": "x"}, "none of system, developer, user and assistant: give it one of these"),
    ],
)
def test_a_message_with_what_is_not_run_is_refused_by_name(
    client: openai.OpenAI, chat_server: RunningServer, message: Any, said: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, [*MESSAGES, message], stream=stream)
        assert (caught.value.param, caught.value.code) == ("messages", "unsupported_parameter")
        assert "number 2" in str(caught.value)
        assert said in str(caught.value)
    chat_server.alive()


def test_a_developer_speaks_as_the_system_to_a_template_that_knows_none(client: openai.OpenAI) -> None:
    system, user = MESSAGES
    asked = [{**system, "role": "developer"}, user]
    assert ask(client, asked).choices == ask(client).choices
    streamed = [chunk.choices[0].delta.content or "" for chunk in ask(client, asked, stream=True)]
    assert "".join(streamed) == ask(client).choices[0].message.content


@pytest.mark.parametrize(
    ("knows", "rendered"),
    [
        ("{{ 'the boss: ' if message.role == 'developer' else message.role }}", "the boss: be brief"),
        ("{{ 'the boss: ' if message.role in ['system', 'developer'] else '' }}", "the boss: be brief"),
        ("{# a developer #}developer {{ message.role }}: ", "developer system: be brief"),
    ],
)
def test_a_developer_is_a_role_of_its_own_to_a_template_that_names_it(knows: str, rendered: str, tmp_path: Path) -> None:
    from inferometer.server.chat import Chat
    from inferometer.server.served_model import find_model
    from inferometer.server.settings import ServerSettings

    path = served_tokenizer(tiny_model(tmp_path, "llama"))
    config = json.loads((path / "tokenizer_config.json").read_text())
    template = f"{{% for message in messages %}}{knows}{{{{ message.content }}}}{{% endfor %}}"
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    chat = Chat(find_model(ServerSettings(model_id=str(path), weights="dummy")))
    assert chat.text([{"role": "developer", "content": "be brief"}]) == rendered


def test_a_message_may_have_nulls_and_what_an_answer_had(client: openai.OpenAI) -> None:
    given = {"tool_calls": None, "function_call": None, "refusal": None, "audio": None, "name": None, "annotations": None}
    assert ask(client, [{**message, **given} for message in MESSAGES]).choices == ask(client).choices
    empty = {"tool_calls": [], "annotations": [], "name": "somebody", "prefix": False}
    assert ask(client, [{**message, **empty} for message in MESSAGES]).choices == ask(client).choices
    said = ask(client).choices[0].message.model_dump()
    again = {"role": "user", "content": "again"}
    plain = {"role": "assistant", "content": said["content"]}
    assert ask(client, [*MESSAGES, said, again]).choices == ask(client, [*MESSAGES, plain, again]).choices


def test_a_model_without_a_template_says_so(server: RunningServer) -> None:
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES})
    assert answer.status == 400
    assert "has no chat template: use /v1/completions" in answer.json()["error"]["message"]
    server.alive()


def test_a_folders_template_serves_a_tokenizer_without_one_and_a_damaged_one_keeps_nobody_from_starting(tmp_path: Path) -> None:
    from inferometer.server.chat import Chat
    from inferometer.server.failures import ApiError
    from inferometer.server.served_model import find_model
    from inferometer.server.settings import ServerSettings

    folder = served_tokenizer(tiny_model(tmp_path, "llama"))
    settings = ServerSettings(model_id=str(folder), weights="dummy")
    assert Chat(find_model(settings)).text(MESSAGES) == RENDERED  # of the byte tokenizer, which has no token for the beginning
    (folder / "chat_template.jinja").write_text("{% for")
    with pytest.raises(ApiError, match=r"the chat template of .* cannot be read"):
        Chat(find_model(settings)).text(MESSAGES)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | int + messages[0] }}")
    with pytest.raises(ApiError, match="does not accept these messages"):
        Chat(find_model(settings)).text(MESSAGES)
    (folder / "chat_template.jinja").write_text("")
    with pytest.raises(ApiError, match="makes no text"):
        Chat(find_model(settings)).text(MESSAGES)
