"""Processes beside a test process that begin with torch loaded: they are forked from one that has loaded it, once for all of them.

Each would take three seconds of a core for that by itself, and a server more than four. What a test process has set up by then is nothing
of theirs, as after a spawn.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from multiprocessing.context import ForkServerContext

import torch

from quick_interpreter import quicken

SERVED = [
    f"inferometer.{name}"
    for name in ("engine.llm", "engine.parallel.leader", "server.embedding_loop", "server.engine_loop", "server.front", "server.warm_up")
]
"""What both processes of a server import when they start."""


def context() -> ForkServerContext:
    """Where such processes come from."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch", "inferometer.nn.transformer", *SERVED])
    return found


def begin_interpreting() -> None:
    """First of all in a process whose kernels Triton is to interpret: it decides that once, when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    quicken()
    gc.freeze()
