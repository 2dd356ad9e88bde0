"""A backend that ends a case in every way there is. The model's table of scores is the fake backend's, over any vocabulary.

Its entry (odd_entries.py) lies apart, as those of other packages should: a study's own process reads it, and loads no torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
from fake_backend import VOCABULARY, FakeBackend
from torch import Tensor

from inferometer.bench.backends.backend import Prompts
from inferometer.bench.backends.opening import Opening


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
