"""What a failed run failed of, and the one line of evidence that a record keeps."""

from __future__ import annotations

import resource
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


def evidence_of(error: Exception) -> str:
    """The kind of error and the first lines of what it says, on one line."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if words.lower() == _UNSAID and (limit := memory_limit()) is not None:
        text += f", where the process may take {gib(limit)}"
    return text if len(text) <= _EVIDENCE_LENGTH else text[: _EVIDENCE_LENGTH - 3] + "..."


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
