"""The files of a checkpoint: that they can be opened, and the index of one that is spread over several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferometer.errors import ModelError, shown


def must_open(file: Path) -> None:
    """Raises ModelError, with the system's reason, where a file cannot be opened: those who read it call that damage, or say that it is not
    there."""
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}; change who may read it, or name another model") from None


def read_index(index: Path) -> dict[str, Path]:
    """The file of each tensor, from a `*.index.json`. Every file exists and lies beside the index.

    Raises ModelError, naming the index, where it is no such index or a file is missing.
    """
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{index}: cannot be read as JSON: {' '.join(str(error).split())}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise ModelError(f'{index}: holds no "weight_map" from tensor names to file names')
    files = dict.fromkeys(weight_map.values())
    for file in files:
        # A checkpoint from elsewhere must not make us read outside its folder.
        if file in ("", ".", "..") or Path(file).name != file:
            raise ModelError(f"{index}: the shard {shown(file)} is not a plain file name")
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{index}: the shard {missing[0]}{more} is missing beside it; fetch the model again")
    return {name: index.parent / file for name, file in weight_map.items()}


def check_index(index: Path, listed: dict[str, Path], found: dict[str, Path]) -> None:
    """Raises ModelError where a shard lacks a tensor that the index places in it; `found` is where the tensors really are."""
    lacking = [name for name, file in listed.items() if found.get(name) != file]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ModelError(f"{listed[lacking[0]]}: lacks the tensor {lacking[0]}{more} that {index.name} places in it")
