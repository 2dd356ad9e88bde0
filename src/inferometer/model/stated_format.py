"""Where a config.json says what few bits its weights are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STATED_IN = ("quantization_config", "compression_config")
_TEXT = "text_config"


def stated_format(config: Mapping[str, Any]) -> Any:
    """What `config` says of it, or that of its text model, as it stands there; None if neither says anything."""
    parts = [part for part in (config, config.get(_TEXT)) if isinstance(part, Mapping)]
    return next((part[key] for part in parts for key in _STATED_IN if part.get(key)), None)


def without_format(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the same model with plain weights."""
    plain = {key: value for key, value in config.items() if key not in _STATED_IN}
    if isinstance(plain.get(_TEXT), Mapping):
        plain[_TEXT] = {key: value for key, value in plain[_TEXT].items() if key not in _STATED_IN}
    return plain
