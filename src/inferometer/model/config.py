"""A model's spec from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.errors import ModelError, shown
from inferometer.model.families import MODEL_TYPES, family_for
from inferometer.model.outlined_families import OUTLINED
from inferometer.model.quantisation import read_quantisation
from inferometer.model.spec import ModelSpec


def read_spec(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The spec of the model that a Hugging Face style configuration describes; `name` is how the model is called in messages.

    Raises ModelError, one line, for an unknown architecture, a malformed value, or an option that would change the result
    and is not run.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"{name}: the configuration must be an object, not {shown(config)}")
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in OUTLINED:
        run = ", ".join(MODEL_TYPES)
        raise ModelError(f"{name}: model_type '{kind}' is estimated (`inferometer estimate`) and not run; the types that run are {run}")
    try:
        family = family_for(config)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None
    read_quantisation(config, name)
    return family.read(config, name)
