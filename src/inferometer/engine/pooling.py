"""From the hidden states of a text's tokens to one vector."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from inferometer.errors import ModelError, UserError, shown
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.transformer import Transformer

PoolingMode = Literal["pooler", "first", "mean", "max", "mean_sqrt"]

_SENTENCE_TRANSFORMERS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How token states become a vector.

    pooler: the model's own trained pooler; first: the first token; mean, max: over tokens; mean_sqrt: sum over tokens divided by
    the square root of their number. normalise: to length 1. max_tokens: longer texts are cut there, None for the model's limit.
    """

    mode: PoolingMode
    normalise: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(PoolingMode):
            raise ValueError(f"pooling must be one of {', '.join(get_args(PoolingMode))}, not {self.mode!r}")


def resolve_pooling(asked: Pooling | str | None, path: Path | None, *, has_pooler: bool) -> Pooling:
    """The pooling that a caller asks for, by its mode alone perhaps; None for what the model's folder declares.

    Raises UserError for a mode that is none or that the model has no part for, and ModelError as `read_pooling` does.
    """
    if asked is None:
        return read_pooling(path, has_pooler=has_pooler)
    mode = asked.mode if isinstance(asked, Pooling) else asked
    modes = [each for each in get_args(PoolingMode) if has_pooler or each != "pooler"]
    if mode not in modes:
        raise UserError(f"pooling must be one of {', '.join(modes)} for this model, not {shown(mode)}")
    return asked if isinstance(asked, Pooling) else Pooling(cast(PoolingMode, mode))


def read_pooling(path: Path | None, *, has_pooler: bool) -> Pooling:
    """The pooling that a model folder declares in sentence-transformers' files; else the model's pooler, if it has one, else mean.

    Raises ModelError for declared steps that are not run.
    """
    if path is None or not (path / "modules.json").is_file():
        return Pooling("pooler" if has_pooler else "mean")
    mode: PoolingMode = "mean"
    normalise = False
    for module in _read_json(path / "modules.json", list):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        match kind:
            case "Transformer":
                pass
            case "Pooling":
                mode = _mode(path / str(module.get("path", "")) / "config.json")
            case "Normalize":
                normalise = True
            case _:
                raise ModelError(
                    f"{path / 'modules.json'}: the module {shown(kind or module)} is not supported; use token states from another tool"
                )
    limits = path / "sentence_bert_config.json"
    longest = _read_json(limits, dict).get("max_seq_length") if limits.is_file() else None
    return Pooling(mode, normalise, longest if isinstance(longest, int) and longest > 0 else None)


def pool(model: Transformer, hidden: Tensor, batch: RaggedBatch, pooling: Pooling) -> Tensor:
    """float32 (sequences, hidden) from hidden states (tokens, hidden) of whole sequences."""
    if pooling.mode == "pooler":
        vectors: Tensor = model.pooled(hidden, batch).float()
    else:
        texts = torch.split(hidden.float(), list(batch.query_lengths))
        vectors = torch.stack([_REDUCTIONS[pooling.mode](text) for text in texts])
    if pooling.normalise:
        vectors = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=1e-12)
    return vectors


def _first(text: Tensor) -> Tensor:
    return text[0]


def _mean(text: Tensor) -> Tensor:
    return text.mean(0)


def _max(text: Tensor) -> Tensor:
    return text.amax(0)


def _mean_sqrt(text: Tensor) -> Tensor:
    return text.sum(0).div(text.shape[0] ** 0.5)


_REDUCTIONS: dict[PoolingMode, Callable[[Tensor], Tensor]] = {"first": _first, "mean": _mean, "max": _max, "mean_sqrt": _mean_sqrt}


def _mode(path: Path) -> PoolingMode:
    config = _read_json(path, dict)
    modes = [mode for key, mode in _SENTENCE_TRANSFORMERS.items() if config.get(key)]
    other = [key for key, value in config.items() if key.startswith("pooling_mode_") and value and key not in _SENTENCE_TRANSFORMERS]
    if len(modes) != 1 or other:
        named = ", ".join([*modes, *other]) or "none"
        raise ModelError(f"{path}: exactly one pooling mode of {', '.join(_SENTENCE_TRANSFORMERS)} is supported, found {named}")
    return modes[0]


def _read_json(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, kind):
        raise ModelError(f"{path} must hold a JSON {'list' if kind is list else 'object'}")
    return value
