"""Weights that turn out to be damaged, or too large for their format, once a model has run."""

from __future__ import annotations

import torch

from inferometer.errors import ModelError


def damaged(name: str, dtype: torch.dtype, shows: str) -> ModelError:
    """The error of a model that runs in `dtype`, and of what shows it: "gives no token a finite score"."""
    kind = str(dtype).removeprefix("torch.")
    wider = "" if dtype == torch.float32 else ", or need --dtype float32"
    return ModelError(f"{name} in {kind} {shows}: its weights are damaged{wider}")
