"""Specs of architectures that are estimated and not run: what of their config.json decides time, memory and energy.

`read_outline` reads every configuration that `model.config.read_spec` reads, exactly so, and these besides. What changes results but
not costs (soft caps, scalings, partial rotation) is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.errors import ModelError, shown
from inferometer.model.config import read_spec
from inferometer.model.families import MODEL_TYPES
from inferometer.model.families.options import Options
from inferometer.model.outlined_families import OUTLINED
from inferometer.model.published import read_published
from inferometer.model.quantisation import read_quantisation
from inferometer.model.spec import ModelSpec
from inferometer.model.stated_format import without_format


def read_outline(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The spec for an estimate.

    Of weights in a format of model.published too, which nothing here runs. Raises ModelError, one line, for an unknown architecture, a
    malformed value, or few bits of a method that is not known.
    """
    published = read_published(config, name) if isinstance(config, Mapping) else None
    if published is not None:
        spec = read_outline(without_format(config), name)
        published.weights(spec, name)  # what cannot be priced is refused here
        return spec
    if isinstance(config, Mapping) and isinstance(config.get("model_type"), str):
        read = OUTLINED.get(config["model_type"])
        if read is not None:
            read_quantisation(config, name)  # bits that are not known would be priced as those of plain weights
            return read(Options(config, name))
    if isinstance(config, Mapping) and str(config.get("model_type")) not in MODEL_TYPES:
        # Of these more are taken than of those that run, which is all that read_spec would list.
        known = ", ".join((*sorted(MODEL_TYPES), *OUTLINED))
        kind = config.get("model_type")
        wrong = 'the configuration has no "model_type"' if kind is None else f"model_type {shown(kind)} is not known"
        raise ModelError(f"{name}: {wrong}; the types are {known}")
    return read_spec(config, name)
