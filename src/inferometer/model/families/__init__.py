"""The families of models, each one file: its configuration and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.errors import ModelError, shown
from inferometer.model.checkpoint import Family
from inferometer.model.families.bert import BERT
from inferometer.model.families.bloom import BLOOM
from inferometer.model.families.gpt2 import GPT2
from inferometer.model.families.gpt_bigcode import GPT_BIGCODE
from inferometer.model.families.llama import LLAMA
from inferometer.model.families.opt import OPT

__all__ = ["FAMILIES", "MODEL_TYPES", "family", "family_for"]

FAMILIES: tuple[Family, ...] = (BLOOM, OPT, GPT2, GPT_BIGCODE, LLAMA, BERT)
MODEL_TYPES = tuple(kind for entry in FAMILIES for kind in entry.model_types)
"""Those that run, as config.json names them."""


def family_for(config: Mapping[str, Any] | str) -> Family:
    """The family that answers for a configuration or a "model_type". Raises ModelError, naming the type, if none does."""
    kind = config if isinstance(config, str) else config.get("model_type")
    known = ", ".join(MODEL_TYPES)
    if kind is None:
        raise ModelError(f'the configuration has no "model_type"; the types are {known}')
    for entry in FAMILIES:
        if kind in entry.model_types:
            return entry
    raise ModelError(f"model_type {shown(kind)} is not supported; the types are {known}")


def family(name: str) -> Family:
    """The family of a spec, by `spec.family`. Raises ModelError for an unknown name."""
    for entry in FAMILIES:
        if entry.name == name:
            return entry
    raise ModelError(f"no family {shown(name)}; the families are {', '.join(entry.name for entry in FAMILIES)}")
