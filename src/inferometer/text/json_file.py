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
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; change who may read it, or name another model") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({' '.join(str(error).split())}); fetch the model again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__} where a JSON object is expected; fetch the model again")
    if "\\u" in text:  # the one way to write half of a pair, which is no text and which no library takes
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise UserError(f"{path}: holds a lone surrogate, {half}, which is no text; fetch the model again") from None
    return content
