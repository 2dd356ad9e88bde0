"""What a failed run failed of, and the one line of evidence that a record keeps."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from inferometer.errors import UserError
from inferometer.model.byte_size import gib

_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudaerrormemoryallocation",
    "std::bad_alloc",
)
# All that oneDNN says when the system gives it no memory for its code; it says so of other things as well.
_UNSAID = "could not create a primitive"
# A kernel that failed fails every call of its process after it, with the same words.
_DEVICE_WORDS = ("cuda error", "cuda driver error", "cublas_status_", "cudnn_status_", "nccl error", "triton error")
_EVIDENCE_LENGTH = 400
# What torch's allocator for CPUs says, between the condition that failed and the system's code with the calls that led there.
_CPU_ALLOCATOR = re.compile(
    r"\[enforce fail at [^]]*\] .*?(DefaultCPUAllocator: .*?\d+ bytes)(\.? Error code \d+ \([^)]*\))?(\.? ?frame #.*)?"
)
# Of the engine, which is a floor below and needs torch.
_WEIGHTS_TOO_LARGE = "WeightsTooLargeError"


class CacheTooSmallError(UserError):
    """The KV cache cannot hold what a case asks for; the message says how many pages are needed and how many there are."""


def status_of(error: Exception) -> Literal["oom", "error"]:
    """ "oom" where memory ran out: torch's own error, Python's, the cache's, or a RuntimeError that only says so in words, or that a
    library raises for little else where the process's memory is limited.
    """
    if isinstance(error, MemoryError | CacheTooSmallError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    words = str(error).lower()
    ran_out = any(w in words for w in _MEMORY_WORDS) or (words == _UNSAID and memory_limit() is not None)
    return "oom" if isinstance(error, RuntimeError) and ran_out else "error"


@contextmanager
def during(phase: str) -> Iterator[None]:
    """What fails within has failed in this phase, unless it was in one within it: `evidence_of` says so where memory ran out."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(phase)
        raise


def evidence_of(error: Exception) -> str:
    """The kind of error and the first lines of what it says, on one line; of an allocator for CPUs its own words alone. Where memory
    ran out, and it is not a sum that says so, with the phase.
    """
    words = _CPU_ALLOCATOR.sub(r"\1", " ".join(str(error).split()))
    named = words.startswith("DefaultCPUAllocator")
    text = words if named else f"{type(error).__name__}: {words}" if words else type(error).__name__
    if words.lower() == _UNSAID and (limit := memory_limit()) is not None:
        text += f", where the process may take {gib(limit)}"
    told = status_of(error) == "oom" and not isinstance(error, CacheTooSmallError)
    where = "".join(f", {phase}" for phase in getattr(error, "__notes__", ())[:1] if told)
    most = _EVIDENCE_LENGTH - len(where)
    return (text if len(text) <= most else text[: most - 3] + "...") + where


def memory_limit() -> int | None:
    """Bytes that the system lets this process have, the least of its limits; None without one."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def refused(evidence: str) -> bool:
    """Whether the evidence of an oom is of a sum that was done beforehand: nothing was allocated, and the process is as it was."""
    return evidence.startswith((CacheTooSmallError.__name__, f"loading the model failed: {_WEIGHTS_TOO_LARGE}"))


def breaks_device(evidence: str) -> bool:
    """Whether the evidence of an error is of one that a process's device keeps: what the process runs next would be blamed for it."""
    return any(words in evidence.lower() for words in _DEVICE_WORDS)
