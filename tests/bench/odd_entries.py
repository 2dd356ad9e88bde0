"""Entries of another package's backends, which odd_backends.py has, and the metadata that registers them. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.requirement import Requirement

HERE = Path(__file__).parent
POINTS = {"odd": "ODD", "odd-missing": "MISSING"}

ODD = BackendEntry(name="odd", opener="odd_backends:open_backend", stack=None)
MISSING = BackendEntry(
    name="odd-missing",
    opener="odd_backends:open_backend",
    stack=None,
    requirements=(Requirement(module="no_such_package", install="no-such-package"),),
)


def install(folder: Path) -> str:
    """Writes the metadata of a package with these backends, and returns the PYTHONPATH under which it is installed."""
    metadata = folder / "odd_backends-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-backends\nVersion: 1\n")
    points = [f"{name} = odd_entries:{variable}" for name, variable in POINTS.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[inferometer.backends]", *points, ""]))
    return os.pathsep.join([str(HERE.parent.parent / "src"), str(HERE), str(folder)])
