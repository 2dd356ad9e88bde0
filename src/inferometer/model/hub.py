"""Models of the Hugging Face Hub: the local cache first, then a download if the huggingface_hub package is here."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path

from inferometer.errors import ModelError, shown

__all__ = ["cached_snapshot", "is_hub_id", "snapshot"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w./+-]{0,199}", re.ASCII)
"""Names of branches and tags, "refs/pr/1" among them. Nothing that leads out of a folder: they are paths in the cache."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DESCRIPTION_FILES = ("*.json", "*.txt", "*.jinja")
# In the order in which a loader looks for them. Files in subfolders (other formats, original weights) are left out.
_WEIGHTS = (("model.safetensors", "model*.safetensors"), ("pytorch_model.bin", "pytorch_model*.bin"))
_TRUE = {"1", "on", "yes", "true"}


def is_hub_id(name: str) -> bool:
    """Whether `name` looks like organisation/model."""
    return _HUB_ID.fullmatch(name) is not None


def snapshot(hub_id: str, *, config_only: bool = False, revision: str | None = None) -> Path:
    """The local folder of a model of the Hub: from the cache, else downloaded. revision: a branch, tag or commit; None for main.

    Only configuration and tokenizer files with `config_only`, else the weights too, as safetensors where there are any.
    Raises ModelError saying why it cannot be had.
    """
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ModelError(f"{shown(revision)} is no revision of {hub_id}: give a branch, a tag or a commit")
    folder = cached_snapshot(hub_id, config_only=config_only, revision=revision)
    if folder is not None:
        return folder
    what = hub_id if revision is None else f"{hub_id} at revision {revision}"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        raise _missing(what, "HF_HUB_OFFLINE is set")
    folder = _download(hub_id, what, config_only=config_only, revision=revision)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{what} has no config.json: it is not a model that transformers describes")
    if not config_only and not _has_weights(folder):
        raise ModelError(f"{what} has no weights in model.safetensors or pytorch_model.bin, whole or in shards")
    return folder


def cached_snapshot(hub_id: str, *, config_only: bool = False, revision: str | None = None) -> Path | None:
    """The model's folder in the Hugging Face cache, None unless everything asked for is there."""
    repository = _cache() / f"models--{hub_id.replace('/', '--')}"
    commit = revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (repository / "refs" / commit).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
    folder = repository / "snapshots" / commit
    whole = bool(commit) and (folder / "config.json").is_file() and (config_only or _has_weights(folder))
    return folder if whole else None


def _cache() -> Path:
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")):
        value = os.environ.get(variable)
        if value:
            return Path(os.path.expandvars(value)).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"


def _has_weights(folder: Path) -> bool:
    for single, _ in _WEIGHTS:
        index = folder / f"{single}.index.json"
        if index.is_file():
            return all((folder / name).is_file() for name in _shards(index))
        if (folder / single).is_file():
            return True
    return False


def _shards(index: Path) -> set[str]:
    """The files that an index names; the index itself where it cannot be read, so that the loader complains about it."""
    try:
        return {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {index.name}


def _download(hub_id: str, what: str, *, config_only: bool, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise _missing(what, "the package huggingface_hub is not installed") from None
    if not sys.stdout.isatty():
        import_module("huggingface_hub.utils").disable_progress_bars()

    def download(*patterns: str) -> Path:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns), etag_timeout=5))

    try:
        folder = download(*_DESCRIPTION_FILES)
        if not config_only:
            print(f"fetching the weights of {what} from the Hugging Face Hub", file=sys.stderr)
            for _, pattern in _WEIGHTS:
                if not _has_weights(folder):
                    folder = download(pattern)
    except Exception as error:  # noqa: BLE001 - the package raises its own, its HTTP library's and its transfer library's errors
        raise _missing(what, _reason(error)) from None
    return folder


def _reason(error: Exception) -> str:
    known = {
        "GatedRepoError": "access is restricted (log in with `hf auth login`)",
        "RevisionNotFoundError": "the Hub has no such revision of it",
        "RepositoryNotFoundError": "the Hub has no such model, or it is private (log in with `hf auth login`)",
        "LocalEntryNotFoundError": "the Hub cannot be reached",
        "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    }
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return known.get(type(error).__name__, f"{type(error).__name__}: {first[:200]}")


def _missing(what: str, reason: str) -> ModelError:
    return ModelError(f"{what} is not in the Hugging Face cache ({_cache()}) and cannot be downloaded: {reason}")
