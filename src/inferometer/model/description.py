"""What the user named as MODEL: a folder, a GGUF file, an embedded model, a preset or a model of the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inferometer.errors import ModelError, shown, shown_path
from inferometer.model import hub, store
from inferometer.model.config import read_spec
from inferometer.model.families.options import UnstatedError
from inferometer.model.presets import Preset, close_names, preset
from inferometer.model.spec import ModelSpec

__all__ = ["ModelDescription", "describe", "with_weights"]

# The end of a sequence where neither generation_config.json nor config.json speaks of it: the configuration classes' defaults.
_END_TOKENS = {"bloom": 2, "opt": 2, "gpt2": 50_256, "gpt_bigcode": 50_256, "llama": 2, "mistral": 2}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model as it was found: what it is and, where its weights are here, the folder or file that holds them.

    `config` is Hugging Face style whatever the source. `path` is None for a preset. `hub_id` is None for what the Hub does not have.
    """

    name: str
    spec: ModelSpec
    config: Mapping[str, Any]
    path: Path | None
    source: Literal["folder", "gguf", "preset"]
    eos_token_ids: tuple[int, ...]
    hub_id: str | None


Reader = Callable[[Mapping[str, Any], str], ModelSpec]


def describe(model: str | None, *, config_only: bool = False, revision: str | None = None, read: Reader = read_spec) -> ModelDescription:
    """The model of this name: a local folder with config.json, a .gguf file, an embedded model, a preset, or a Hub id, whose `revision`
    (a branch, tag or commit; None for main) it then is.

    None is the embedded model, fetched if it is not here. With `config_only`, for what needs no weights (an estimate, dummy
    weights), no weights are fetched. `read` turns its configuration into a spec: read_spec refuses what is not run exactly, and
    model.outline.read_outline takes what is only estimated too. Raises ModelError for a model that cannot be found, read or run exactly,
    and UserError where the embedded model cannot be fetched.
    """
    if model is None:
        return _embedded(store.DEFAULT_MODEL, fetch=not config_only)
    if not model.strip():
        raise ModelError("the model's name is empty: pass a folder, a .gguf file, a preset or a Hub id")
    path = Path(model).expanduser()
    if _is_file(path / "config.json"):
        return _folder(path, path.resolve().name, read)
    if model.strip().lower() in store.EMBEDDED:
        return _embedded(model.strip().lower(), fetch=False)
    known = preset(model)
    if known is not None:
        # Asked for by its Hub id, an embedded model means the Hub's weights, not the embedded file's.
        return _preset(replace(known, name=known.hub_id) if known.name in store.EMBEDDED and known.hub_id else known, read)
    if _is_file(path):
        if path.suffix.lower() == ".gguf":
            return _gguf(path, path.stem)
        raise ModelError(f"{path} is a file but not a .gguf file: pass the folder with config.json and the weights")
    if _is_folder(path):
        return _folder(path, path.resolve().name, read)
    if path.suffix.lower() == ".gguf" or path.is_absolute() or model.startswith((".", "~")) or model.endswith("/"):
        raise ModelError(f"no such file or folder: {shown_path(model)}")
    if hub.is_hub_id(model):
        return _hub(model, read, config_only=config_only, revision=revision)
    raise ModelError(f"no model {shown(model)}: not a local folder, a .gguf file, a preset or a Hub id; {_advice(model)}")


def with_weights(description: ModelDescription, *, revision: str | None = None) -> ModelDescription:
    """The same model with a path to its weights: a preset's are looked for in the Hugging Face cache, then on the Hub, of `revision`.

    An embedded model's are fetched. Raises ModelError where they cannot be had, naming `--weights dummy` as the way without.
    """
    if description.path is not None:
        return description
    if description.name in store.EMBEDDED:
        return _embedded(description.name, fetch=True)
    remedy = "pass a folder with the weights (generate, bench and serve also take --weights dummy)"
    if description.hub_id is None:
        raise ModelError(f"{description.name} has no published weights: {remedy}")
    try:
        folder = hub.snapshot(description.hub_id, revision=revision)
    except ModelError as error:
        raise ModelError(f"no weights for {description.name}: {error}; {remedy}") from None
    return replace(_folder(folder, description.name, read_spec), hub_id=description.hub_id)


def _embedded(name: str, *, fetch: bool) -> ModelDescription:
    known = preset(name)
    assert known is not None, f"the embedded model {name} has no preset"
    path = store.fetch(name) if fetch else store.locate(name)
    if path is None:
        return _preset(known, read_spec)
    found = _gguf(path, name) if path.suffix == ".gguf" else _folder(path, name, read_spec)
    return replace(found, hub_id=known.hub_id)


def _preset(known: Preset, read: Reader) -> ModelDescription:
    spec = read(known.config, known.name)
    eos = _eos_token_ids(known.name, spec, known.config)
    return ModelDescription(known.name, spec, dict(known.config), None, "preset", eos, known.hub_id)


def _gguf(path: Path, name: str) -> ModelDescription:
    from inferometer.model.gguf import gguf_config

    config = gguf_config(path)
    spec = read_spec(config, name)
    return ModelDescription(name, spec, config, path, "gguf", _eos_token_ids(str(path), spec, config), None)


def _folder(path: Path, name: str, read: Reader) -> ModelDescription:
    config = _read_object(path / "config.json")
    if config is None:
        files = sorted(entry.name for entry in path.glob("*.gguf"))
        remedy = f"pass one of its files, as in {path / files[0]}" if files else "pass the folder that holds it beside the weights"
        raise ModelError(f"folder {path} has no config.json: {remedy}")
    try:
        spec = read(config, name)
    except UnstatedError as error:
        raise UnstatedError.of(str(path / "config.json"), error.sizes) from None
    generation = _read_object(path / "generation_config.json") or {}
    eos = _eos_token_ids(str(path), spec, generation, config)
    return ModelDescription(name, spec, config, path, "folder", eos, None)


def _hub(hub_id: str, read: Reader, *, config_only: bool, revision: str | None) -> ModelDescription:
    try:
        folder = hub.snapshot(hub_id, config_only=config_only, revision=revision)
    except ModelError as error:
        close = close_names(hub_id)
        meant = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ModelError(f"{error}; pass a local folder or a preset{meant}") from None
    return replace(_folder(folder, hub_id, read), hub_id=hub_id)


def _read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ModelError(f"{path} is not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, not {shown(value)}")
    return value


def _eos_token_ids(where: str, spec: ModelSpec, *configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens from the first configuration that names any; ids outside the vocabulary never come up and are dropped."""
    value = next((config["eos_token_id"] for config in configs if config.get("eos_token_id") is not None), None)
    if value is None and "eos_token_id" not in configs[-1]:
        value = _END_TOKENS.get(str(configs[-1].get("model_type")))
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in ids):
        raise ModelError(f"{where}: eos_token_id must be a token id or a list of token ids, not {shown(value)}")
    return tuple(dict.fromkeys(entry for entry in ids if 0 <= entry < spec.vocabulary))


def _advice(name: str) -> str:
    close = close_names(name)
    return f"did you mean {' or '.join(close)}?" if close else "`inferometer models` lists the presets"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long to be a file's
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
