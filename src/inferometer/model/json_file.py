"""JSON files of the cache folder, which other processes read at any time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from inferometer.model.scratch import scratch_beside


def replace_json(path: Path, document: Any) -> None:
    """Writes `document` to `path` in one step: whoever reads it, also after a loss of power, sees the old file or the new one.

    Makes the folder where there is none. Raises OSError where that cannot be done; the old file is then as it was.
    """
    with scratch_beside(path) as scratch:
        made = scratch / path.name
        with made.open("x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
