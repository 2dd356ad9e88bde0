"""Processes beside a test process that begin with torch loaded: they are forked from one that has loaded it, once for all of them.

Each would take three seconds of a core for that by itself. What a test process has set up by then is nothing of theirs, as after a spawn.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from multiprocessing.context import ForkServerContext

import torch

from quick_interpreter import quicken


def context() -> ForkServerContext:
    """Where such processes come from."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch", "inferometer.nn.transformer"])
    return found


def begin_interpreting() -> None:
    """First of all in a process whose kernels Triton is to interpret: it decides that once, when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    quicken()
    gc.freeze()
