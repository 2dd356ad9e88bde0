"""Conversations as the text that the model was tuned on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from inferometer.errors import UserError
from inferometer.server.failures import invalid
from inferometer.server.served_model import ServedModel
from inferometer.text.chat import ChatTemplate, TemplateRefusalError

LOG = logging.getLogger(__name__)

_LONGEST_REASON = 300
_DEVELOPER = "developer"
"""OpenAI's newer name of the system's role."""


class Chat:
    """The chat template of one model. A model without one, or with one that cannot be read, is served all the same."""

    def __init__(self, model: ServedModel) -> None:
        self._template: ChatTemplate | None = None
        self._why_not = f"{model.name} has no chat template: use /v1/completions"
        try:
            self._template = None if model.tokenizer is None else ChatTemplate.of(model.tokenizer, model.chat_template)
        except UserError as error:
            LOG.warning("no chat: %s", error)
            self._why_not = f"the chat template of {model.name} cannot be read: use /v1/completions"

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation up to where the assistant's next message begins, special tokens by their names.

        Raises ApiError where there is no template or it refuses the messages; of its reasons only those that its author wrote are told,
        as others may quote the messages.
        """
        if self._template is None:
            raise invalid(self._why_not, "messages")
        try:
            text = self._template.render(messages if self._template.names(_DEVELOPER) else list(map(_by_system, messages)))
        except TemplateRefusalError as error:
            raise invalid(f"`messages`: {str(error)[:_LONGEST_REASON]}", "messages") from None
        except UserError:
            raise invalid("`messages`: the chat template does not accept these messages", "messages") from None
        if not text:
            raise invalid("`messages`: the chat template makes no text of these messages", "messages")
        return text


def _by_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A developer's message as the system's."""
    return {**message, "role": "system"} if message["role"] == _DEVELOPER else message
