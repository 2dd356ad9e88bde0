"""Chat templates: a conversation as the one text that the model was tuned on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any

from inferometer.errors import UserError, shown
from inferometer.text.tokenizer import Tokenizer

_TEMPLATE_FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What an expression in a template may raise besides Jinja's own errors."""


class _Refusal(Exception):  # noqa: N818  (a template's word, not an error of ours)
    """What a template raised."""


class TemplateRefusalError(UserError):
    """The template refuses the messages in words of its own (its `raise_exception`)."""


class ChatTemplate:
    """A checkpoint's Jinja template, run in Jinja's sandbox with the filters and functions that such templates expect.

    `special_tokens` are further named tokens ("pad_token", ...) that the template may use; a name without a token is undefined
    in the template and renders as nothing. Raises UserError where the template is not valid Jinja.
    """

    def __init__(
        self, template: str, bos_token: str | None = None, eos_token: str | None = None, *, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        import jinja2

        named = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._names = {name: token for name, token in named.items() if token is not None}
        environment = _environment()
        try:
            self._template = environment.from_string(template)
            self._words = {each.value for each in environment.parse(template).find_all(jinja2.nodes.Const) if isinstance(each.value, str)}
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template cannot be read: {_line(error)}; use --raw, or repair the model's chat template") from None

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: str | None = None) -> ChatTemplate | None:
        """The template that `tokenizer` came with, else `template`; None if there is neither."""
        names = tokenizer.special_tokens
        source = template if tokenizer.chat_template is None else tokenizer.chat_template
        return None if source is None else cls(source, names.get("bos_token"), names.get("eos_token"), special_tokens=names)

    def names(self, role: str) -> bool:
        """Whether it treats this role apart, as its expressions name it."""
        return role in self._words

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as text; with `add_generation_prompt`, up to where the assistant's next message begins.

        A message is a mapping with "role" (a text) and "content" (a text, or a list of parts such as
        {"type": "text", "text": ...}); it may have other keys, such as "tool_calls". The special tokens are in the text, so
        encode it with special=False. Raises UserError for messages of another form and for those that the template refuses,
        TemplateRefusalError where it says why.
        """
        import jinja2

        conversation = _checked(messages)
        context = {
            "tools": None if tools is None else _plain(tools, "tools"),
            "documents": None if documents is None else _plain(documents, "documents"),
        }
        try:
            text: str = self._template.render(messages=conversation, add_generation_prompt=add_generation_prompt, **context, **self._names)
        except _Refusal as error:
            raise TemplateRefusalError(f"the chat template refuses these messages: {_line(error)}") from None
        except (jinja2.TemplateError, *_TEMPLATE_FAILURES) as error:
            raise UserError(f"the chat template does not accept these messages: {_line(error)}") from None
        return text


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant wrote, for training; here its contents are just rendered."""

        tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise _Refusal(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        # Jinja's own filter escapes for HTML, which no model has seen.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UserError(f"messages must be a list of messages with role and content, not {type(messages).__name__}")
    if not messages:
        raise UserError("messages is empty: give at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError(f"{where} must be a message with role and content, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise UserError(f"{where} needs a role (a text such as 'user'), not {shown(role)}")
    if content is None and not message.get("tool_calls"):
        raise UserError(f"{where} has no content")
    if not isinstance(content, (str, list, tuple, NoneType)) or not all(isinstance(part, (str, Mapping)) for part in content or ()):
        raise UserError(f"{where}: content must be a text or a list of parts such as {{'type': 'text', 'text': ...}}")
    # Templates print None as the word; an absent key is what they know how to handle.
    return {key: value for key, value in _plain(message, where).items() if value is not None}


def _plain(value: Any, where: str) -> Any:
    """A copy of plain JSON types: templates come with checkpoints, so they get to see no object that has methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    raise UserError(f"{where} holds a {type(value).__name__}; only texts, numbers, lists and mappings can go into a chat")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
