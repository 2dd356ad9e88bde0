"""Completions asked by OpenAI's own client, whole and streamed."""

from __future__ import annotations

from typing import Any

import openai
from openai.types import Completion

VARIED = {"repetition_penalty": 1.5}
"""Without it a random model says one thing over and over."""


def ask(client: openai.OpenAI, prompt: Any = "hello there", **parameters: Any) -> Completion:
    """A completion, greedy unless told otherwise."""
    extra = {name: parameters.pop(name) for name in list(parameters) if name in ("repetition_penalty", "top_k", "ignore_eos", "min_tokens")}
    return client.completions.create(**{"model": "tgi", "prompt": prompt, "temperature": 0, "extra_body": extra or None, **parameters})


def streamed(client: openai.OpenAI, prompt: Any = "hello there", **parameters: Any) -> list[Completion]:
    """The chunks of one."""
    return list(ask(client, prompt, stream=True, **parameters))  # type: ignore[arg-type]
