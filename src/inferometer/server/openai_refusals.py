"""What OpenAI's and other servers' requests may ask for and this server does not do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
}
"""Fields that would change the answer and are not run, with what they ask for."""

_HARMLESS: Mapping[str, Sequence[Any]] = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "length_penalty": (1,),
}
"""Values of those that ask for what is done anyhow."""


def refuse_what_is_not_here(fields: Mapping[str, Any] | None) -> None:
    """Raises ApiError where `fields` ask for something that this server does not do."""
    for name, value in (fields or {}).items():
        if name not in _NOT_HERE or not value or value in _HARMLESS.get(name, ()):
            continue
        raise invalid(f"`{name}`: this server does not support {_NOT_HERE[name]}", name, "unsupported_parameter")
