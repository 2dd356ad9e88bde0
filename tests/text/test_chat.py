"""Chat templates render as transformers renders them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from inferometer.errors import UserError
from inferometer.text.chat import ChatTemplate
from inferometer.text.tokenizer import LibraryTokenizer

CHATML_WITH_DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """\
{%- set ns = namespace(turns=0) %}
{{ bos_token }}{{ pad_token }}
{% for message in messages %}
    {% if message.role == "system" %}
        {% continue %}
    {% endif %}
    {%- generation %}
[{{ message.role | upper }}] {{ message['content'] | trim }}{{ eos_token }}
    {% endgeneration %}
    {%- set ns.turns = ns.turns + 1 %}
    {% if ns.turns > 3 %}{% break %}{% endif %}
{% endfor %}
{{ ns.turns }}{% if tools is none %} no tools{% else %}{{ tools | tojson(indent=2) }}{% endif %}
{{ {"é": "<&'>", "b": [1, none, true]} | tojson }}
"""
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.content is defined %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}"
    "{% endif %}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}|{% endfor %}"
)
TEMPLATES = {"ChatML": CHATML_WITH_DEFAULT_SYSTEM, "blocks": BLOCKS, "parts": PARTS}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hé, <b>&amp; 'x'\n\n{{ 7 * 7 }} "}],
    "many turns": [{"role": role, "content": f"{role} {i}"} for i in range(4) for role in ("user", "assistant")],
}


@pytest.fixture
def theirs(build: Callable[[str], Backend]) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=build("byte-level"), bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_equals_transformers(template: str, conversation: str, prompt: bool, theirs: Any) -> None:
    messages = CONVERSATIONS[conversation]
    expected = theirs.apply_chat_template(messages, chat_template=TEMPLATES[template], tokenize=False, add_generation_prompt=prompt)
    ours = ChatTemplate(TEMPLATES[template], "<s>", "</s>")
    assert ours.render(messages, add_generation_prompt=prompt) == expected


def test_parts_and_tool_calls_equal_transformers(theirs: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1.5, None, False]}}}]},
        {"role": "tool", "content": "3", "name": "f"},
    ]
    expected = theirs.apply_chat_template(messages, chat_template=PARTS, tokenize=False)
    # The OpenAI API writes content: null beside tool calls; a template sees that as no content.
    messages[1]["content"] = None
    assert ChatTemplate(PARTS).render(messages, add_generation_prompt=False) == expected


def test_tools_equal_transformers(theirs: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]
    messages = CONVERSATIONS["one turn"]
    expected = theirs.apply_chat_template(messages, chat_template=BLOCKS, tokenize=False, tools=tools)
    assert ChatTemplate(BLOCKS, "<s>", "</s>").render(messages, add_generation_prompt=False, tools=tools) == expected


def test_smollm2s_default_system_message() -> None:
    assert ChatTemplate(CHATML_WITH_DEFAULT_SYSTEM, "<|im_start|>", "<|im_end|>").render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_of_a_tokenizer(build: Callable[[str], Backend]) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    template = "{{ bos_token }}{{ pad_token }}{{ messages[0].content }}{{ eos_token }}"
    tokenizer = LibraryTokenizer(build("byte-level"), special_tokens=special, chat_template=template)
    chat = ChatTemplate.of(tokenizer)
    assert chat is not None
    assert chat.render([{"role": "user", "content": "x"}]) == "<s><pad>x</s>"
    assert ChatTemplate.of(LibraryTokenizer(build("byte-level"))) is None


def test_today() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}").render([{"role": "user", "content": "x"}])
    assert int(text) - datetime.now().year in (0, -1)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.absent.deeper }}", "absent"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ messages.append(1) }}", "not callable|unsafe|safe"),
        ("{{ 1 / 0 }}", "zero"),
    ],
)
def test_a_template_that_refuses_or_fails_is_one_line(template: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        ChatTemplate(template).render([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_template_that_is_not_jinja() -> None:
    with pytest.raises(UserError, match="chat template") as caught:
        ChatTemplate("{% if %}\n{% endfor %}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "empty"),
        ("Hello", "list"),
        ({"role": "user", "content": "x"}, "list"),
        (["Hello"], r"messages\[0\]"),
        ([{"content": "x"}], r"messages\[0\].*role"),
        ([{"role": "user", "content": "x"}, {"role": 3, "content": "x"}], r"messages\[1\].*role"),
        ([{"role": "user"}], r"messages\[0\].*content"),
        ([{"role": "user", "content": 5}], r"messages\[0\].*content"),
        ([{"role": "user", "content": [5]}], r"messages\[0\].*content"),
        ([{"role": "user", "content": "x", "image": object()}], r"messages\[0\].*object"),
    ],
)
def test_messages_that_are_refused(messages: Any, named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        ChatTemplate(CHATML_WITH_DEFAULT_SYSTEM).render(messages)
    assert "\n" not in str(caught.value)
