"""What OpenAI's and other servers' requests may ask for and this server does not do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from inferometer.server.failures import invalid

_NOT_HERE: Mapping[str, str] = {
    "response_format": "structured output",
    "structured_outputs": "structured output",
    "guided_json": "structured output",
    "guided_regex": "structured output",
    "guided_choice": "structured output",
    "guided_grammar": "structured output",
    "json_schema": "structured output",
    "regex": "structured output",
    "ebnf": "structured output",
    "grammar": "structured output",
    "tools": "calling tools",
    "tool_choice": "calling tools",
    "functions": "calling functions",
    "function_call": "calling functions",
    "web_search_options": "searching the web",
    "audio": "audio",
    "modalities": "output other than text",
    "prediction": "predicted output",
    "adapter_id": "an adapter",
    "lora_path": "an adapter",
    "lora_request": "an adapter",
    "lora": "an adapter",
    "adapter": "an adapter",
    "adapters": "an adapter",
    "suffix": "text behind the completion",
    "chat_template": "a chat template of the request's own",
    "chat_template_kwargs": "variables of the chat template",
    "documents": "documents for the chat template",
    "continue_final_message": "continuing the last message",
    "use_beam_search": "beam search",
    "length_penalty": "a length penalty",
    "min_p": "min-p sampling",
    "prompt_logprobs": "prompt log-probabilities outside `echo`",
    "truncate_prompt_tokens": "truncation",
    "bad_words": "banned words",
    "allowed_token_ids": "a list of allowed tokens",
    "skip_special_tokens": "special tokens in the text",
    "include_stop_str_in_output": "the stop string in the text",
    "add_generation_prompt": "a conversation that is not to be answered",
    "echo": "repeating a conversation",
    "structural_tag": "structured output",
    "logits_processors": "code of the request's own",
}
"""Fields that would change the answer and are not run, with what they ask for."""

_HARMLESS: Mapping[str, Sequence[Any]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
}
"""Values of those that ask for what is done anyhow."""

_NOTHING: Sequence[Any] = (False, 0, "", [])
"""Such values of the others. An empty object is none: an empty schema allows any JSON, and nothing but JSON."""

ROLES: Final = ("system", "developer", "user", "assistant")
"""Whose messages a conversation may hold."""

_NOT_IN_A_MESSAGE: Mapping[str, str] = {
    "tool_calls": "calling tools",
    "tool_call_id": "calling tools",
    "function_call": "calling functions",
    "audio": "audio",
    "refusal": "a refusal in place of content",
    "prefix": "continuing the last message",
}
"""Fields of a message that would change the answer and are not run, with what they ask for. What is neither here nor known is the chat
template's: a participant's `name`, for one.
"""

_ROLES_NOT_HERE: Mapping[str, str] = {
    "tool": "this server does not support calling tools",
    "function": "this server does not support calling functions",
}

_ADAPTER_NAMES = re.compile(r"(^|[^a-z])(q?lora|adapter)s?([^a-z]|$)", re.IGNORECASE)


def refuse_what_is_not_here(fields: Mapping[str, Any] | None) -> None:
    """Raises ApiError where `fields` ask for something that this server does not do. null is as good as left out."""
    for name, value in (fields or {}).items():
        if name not in _NOT_HERE or value is None or value in _HARMLESS.get(name, _NOTHING):
            continue
        raise invalid(f"`{name}`: this server does not support {_NOT_HERE[name]}", name, "unsupported_parameter")


def refuse_in_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError where a message comes from somebody else than these or has what this server does not do. null is as good as
    left out.
    """
    for place, message in enumerate(messages):
        role = message["role"]
        if role not in ROLES:
            why = _ROLES_NOT_HERE.get(role, "give it one of these")
            said = f"`messages`: the role of number {place} is none of {', '.join(ROLES[:-1])} and {ROLES[-1]}: {why}"
            raise invalid(said, "messages", "unsupported_parameter")
        for name, asked in _NOT_IN_A_MESSAGE.items():
            if message.get(name) is not None and message[name] not in _NOTHING:
                said = f"`messages`: number {place} has `{name}`: this server does not support {asked}"
                raise invalid(said, "messages", "unsupported_parameter")


def refuse_adapter(asked: str | None, served: str) -> None:
    """Raises ApiError where the model that a request names is an adapter of the one that is served: `served:adapter`, or a name that says
    so ("sql-lora"). Any other name means the one model that there is, as text-generation-inference has it.
    """
    if asked is None or asked == served:
        return
    if asked.startswith(f"{served}:") or _ADAPTER_NAMES.search(asked):
        raise invalid("`model`: this server does not support adapters; /v1/models lists what is served", "model", "unsupported_parameter")
