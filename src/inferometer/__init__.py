"""Inferometer: runs, serves, measures and predicts transformer inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.engine.llm import LLM as LLM
    from inferometer.engine.parallel.ranks import RanksError as RanksError
    from inferometer.schedule.completion import Completion as Completion
    from inferometer.schedule.sampling import SamplingParams as SamplingParams

__all__ = ["LLM", "Completion", "RanksError", "SamplingParams"]
__version__ = "0.1.0"

_HOME = {
    "LLM": "inferometer.engine.llm",
    "Completion": "inferometer.schedule.completion",
    "RanksError": "inferometer.engine.parallel.ranks",
    "SamplingParams": "inferometer.schedule.sampling",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that the torch-free floors start without torch.
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inferometer' has no attribute {name!r}")
