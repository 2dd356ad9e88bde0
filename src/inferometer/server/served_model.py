"""The model as the HTTP process knows it: what it is and how text becomes its tokens. Its weights are the engine's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from inferometer.errors import UserError
from inferometer.model.description import ModelDescription, describe, with_weights
from inferometer.model.quantisation import check_quantize, read_quantisation, resolve_quantize
from inferometer.model.shard import check_shards
from inferometer.model.spec import ModelSpec
from inferometer.server.settings import ServerSettings
from inferometer.text.folder import folder_chat_template
from inferometer.text.load import load_tokenizer
from inferometer.text.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: what clients call it. eos_token_ids: what ends a continuation. context_limit: most tokens of a sequence, None for any number.
    pipeline_tag: what the model's card says that it is for, None without a card. chat_template: what its folder declares, for a
    tokenizer that brings none of its own.
    """

    name: str
    spec: ModelSpec
    description: ModelDescription
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    pipeline_tag: str | None
    chat_template: str | None

    @property
    def context_limit(self) -> int | None:
        """Most tokens of one sequence: the positions that the model has, or its sliding window if that is shorter."""
        return self.spec.full_context_limit

    @property
    def commit(self) -> str | None:
        """Its version, None where it does not lie in the Hub's cache."""
        path = self.description.path
        return path.name if path is not None and path.parent.name == "snapshots" else None

    @property
    def versioned(self) -> bool:
        """Whether there are several versions of it to choose from."""
        return self.description.hub_id is not None


def find_model(settings: ServerSettings, shards: int = 1) -> ServedModel:
    """Finds the model and reads its configuration and tokenizer, not its weights. shards: that it is to be spread over.

    Raises UserError, one line, for a model or tokenizer that is not there or cannot be read, and for what this server cannot run.
    """
    check_quantize(settings.quantize)
    dummy = settings.weights == "dummy"
    if settings.weights_cache_override is not None and not Path(settings.weights_cache_override).is_dir():
        raise UserError(f"--weights-cache-override {settings.weights_cache_override}: no such folder; give one with the model's files")
    described = describe(settings.model_path, config_only=dummy, revision=settings.revision)
    if shards > 1:
        try:
            check_shards(described.spec, shards)
        except UserError as error:
            raise UserError(str(error).replace("--tensor-parallel", "--num-shard")) from None
    described = described if dummy else with_weights(described, revision=settings.revision)
    resolve_quantize(settings.quantize, read_quantisation(described.config, described.name))
    if settings.quantize == "bitsandbytes":
        LOG.warning("--quantize bitsandbytes: weights are rounded to int8 by this engine itself; bitsandbytes is not used")
    path = settings.tokenizer or ("byte" if dummy else described.path)
    tokenizer = load_tokenizer(path)
    ends = described.eos_token_ids or (() if tokenizer is None else tokenizer.eos_token_ids)
    folder = described.path if described.path is not None and described.path.is_dir() else None
    return ServedModel(
        name=settings.model_id or described.name,
        spec=described.spec,
        description=described,
        tokenizer=tokenizer,
        eos_token_ids=ends,
        pipeline_tag=None if folder is None else _pipeline_tag(folder),
        chat_template=None if folder is None else folder_chat_template(folder),
    )


def _pipeline_tag(path: Path) -> str | None:
    try:
        lines = (path / "README.md").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    if lines[:1] != ["---"]:
        return None
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if line == "---":
            break
        if name == "pipeline_tag":
            return value.strip().strip("\"'") or None
    return None
