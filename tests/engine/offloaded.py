"""Small models of random weights by family, and what they said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferometer import LLM
from inferometer.schedule.completion import Completion
from tiny_models import tiny_model

Maker = Callable[..., LLM]


def dummy(folder: Path, kind: str, **options: Any) -> LLM:
    """The same weights for all options, in float32 on the CPU."""
    return LLM(tiny_model(folder, kind), dtype="float32", device="cpu", weights="dummy", seed=2, **options)


def told(completions: list[Completion]) -> list[tuple[tuple[int, ...], str | None]]:
    """Of each its tokens, and why it ended."""
    return [(tuple(completion.token_ids), completion.finish_reason) for completion in completions]
