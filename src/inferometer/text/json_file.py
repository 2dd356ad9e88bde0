"""Reads the JSON files beside a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferometer.errors import UserError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, empty if there is no such file. Raises UserError, naming the file, for anything else."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({' '.join(str(error).split())}); fetch the model again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__} where a JSON object is expected; fetch the model again")
    return content
