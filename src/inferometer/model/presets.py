"""The models known by name, from presets.toml."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from inferometer.model.outline import read_outline
from inferometer.model.spec import ModelSpec

__all__ = ["PRESETS", "Preset", "close_names", "preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A model known by name. `hub_id` is where its weights are, None if nowhere; `config` is a Hugging Face style configuration."""

    name: str
    about: str
    hub_id: str | None
    config: Mapping[str, Any]

    def spec(self) -> ModelSpec:
        """What the model is, for an estimate: some of them are not run (`ModelSpec.unrun`, or a family that is only outlined)."""
        return read_outline(self.config, self.name)


def preset(name: str) -> Preset | None:
    """The preset of this name, alias or Hub id, whatever the case; None if there is none.

    Asked for by one of several Hub ids, the preset's `hub_id` is that one: the same description, other weights.
    """
    return _read().names.get(name.strip().lower())


def close_names(name: str) -> list[str]:
    """Up to three names of presets that `name` may be a misspelling of, best first."""
    names = _read().names
    found = difflib.get_close_matches(name.lower(), names, n=9, cutoff=0.6)
    return list(dict.fromkeys(names[match].name for match in found))[:3]


class _Presets(Mapping[str, Preset]):
    def __getitem__(self, name: str) -> Preset:
        return _read().presets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_read().presets)

    def __len__(self) -> int:
        return len(_read().presets)


PRESETS: Mapping[str, Preset] = _Presets()
"""Every preset under its own name, in the file's order. The file is read on first use."""


@dataclass(frozen=True, slots=True)
class _Table:
    presets: Mapping[str, Preset]
    names: Mapping[str, Preset]


@cache
def _read() -> _Table:
    text = (resources.files("inferometer.model") / "presets.toml").read_text(encoding="utf-8")
    presets: dict[str, Preset] = {}
    names: dict[str, Preset] = {}
    short_names: dict[str, Preset] = {}
    for group in tomllib.loads(text).values():
        for name, entry in group["models"].items():
            hub = entry.get("hub", [])
            made = Preset(name, group["about"], hub[0] if hub else None, MappingProxyType(group["config"] | entry["config"]))
            presets[name] = names[name.lower()] = made
            for alias in entry.get("aliases", []):
                names[alias.lower()] = made
            for hub_id in hub:
                variant = replace(made, hub_id=hub_id)
                names[hub_id.lower()] = variant
                short_names[hub_id.split("/")[1].lower()] = variant
    # A preset's own name means its usual weights, whatever a Hub id's second part says.
    return _Table(MappingProxyType(presets), MappingProxyType(short_names | names))
