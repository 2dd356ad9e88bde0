"""Backends of another package, registered by entry points, that end a case in every way there is. The model's table of scores is the
fake backend's, over any vocabulary.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import torch
from fake_backend import VOCABULARY, FakeBackend
from torch import Tensor

from inferometer.bench.backends.backend import Prompts
from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.requirement import Requirement

HERE = Path(__file__).parent
POINTS = {"odd": "ODD", "odd-missing": "MISSING"}


class OddBackend(FakeBackend):
    """Batches of 2 fail, those of 3 end the process, those of 4 hang, those of 5 and more take 256 MiB a row for a moment."""

    def _scores(self, prompts: Prompts) -> Tensor:
        return super()._scores([[token % VOCABULARY for token in row] for row in prompts])


def open_backend(opening: Opening) -> OddBackend:
    """The backend, whatever the model."""
    return OddBackend("odd", fail=_act)


def _act(what: str, rows: int) -> None:
    if what != "prefill":
        return
    if rows == 2:
        raise RuntimeError("it broke")
    if rows == 3:
        print("one last word", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if rows == 4:
        threading.Event().wait()
    if rows >= 5:
        torch.empty(rows << 28, dtype=torch.uint8)


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
    points = [f"{name} = odd_backends:{variable}" for name, variable in POINTS.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[inferometer.backends]", *points, ""]))
    return os.pathsep.join([str(HERE.parent.parent / "src"), str(HERE), str(folder)])
