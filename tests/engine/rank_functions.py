"""What tests let ranks do. In a module of its own, which other ranks import."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from inferometer.errors import UserError


def number(held: Any) -> int:
    """Which rank this is."""
    return int(held.rank)


def way(held: Any) -> Any:
    """To the other ranks, over the host's network."""
    return held.collective(torch.device("cpu"), invariant=False)


def twice(held: Any) -> int:
    """Of what is held under a name."""
    return 2 * int(held)


def refuse(held: Any, *ranks: int) -> None:
    """As a user's mistake, on some ranks."""
    if held.rank in ranks:
        raise UserError("no such thing; ask for another")


def exhaust(held: Any, *ranks: int) -> None:
    """For want of memory, on some ranks."""
    if held.rank in ranks:
        raise MemoryError("no room")


def fail(held: Any, *ranks: int) -> None:
    """In a way that nobody foresaw, on some ranks."""
    if held.rank in ranks:
        raise ZeroDivisionError("one\nby nothing")


def die(held: Any, *ranks: int) -> None:
    """At once, on some ranks."""
    if held.rank in ranks:
        os.kill(os.getpid(), signal.SIGKILL)


def stop(held: Any, *ranks: int) -> None:
    """For ever, on some ranks."""
    if held.rank in ranks:
        os.kill(os.getpid(), signal.SIGSTOP)


def damage(llm: Any) -> None:
    """Weights that are no numbers."""
    llm.model.embedding.token.weight.fill_(float("nan"))
