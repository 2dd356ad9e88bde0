"""JSON files of the cache folder, which other processes read at any time."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def replace_json(path: Path, document: Any) -> None:
    """Writes `document` to `path` in one step: whoever reads it, also after a loss of power, sees the old file or the new one.

    Makes the folder where there is none. Raises OSError where that cannot be done; the old file is then as it was.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
