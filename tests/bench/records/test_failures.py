from __future__ import annotations

import resource

import pytest
import torch

from inferometer.bench.records.failures import CacheTooSmallError, breaks_device, during, evidence_of, status_of


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        CacheTooSmallError("2 x 9 tokens need more"),
    ],
)
def test_what_ran_out_of_memory_is_told_apart(error: Exception) -> None:
    assert status_of(error) == "oom"


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyError("x")])
def test_other_failures_are_errors(error: Exception) -> None:
    assert status_of(error) == "error"


def test_torch_itself_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert status_of(caught.value) == "oom"


def test_evidence_is_one_line_of_limited_length() -> None:
    assert evidence_of(ValueError("a\n  b")) == "ValueError: a b"
    assert evidence_of(MemoryError()) == "MemoryError"
    assert len(evidence_of(ValueError("x" * 10_000))) <= 400


def test_an_allocator_is_quoted_without_the_calls_that_led_to_it() -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64684032 bytes"
    code = f"[enforce fail at alloc_cpu.cpp:127] err == 0. {words}. Error code 12 (Cannot allocate memory)"
    assert evidence_of(RuntimeError(code)) == words
    assert evidence_of(RuntimeError(f"{code}\nframe #0: c10::ThrowEnforceNotMet(char const*) + 0x9d (0x7f in libc10.so)")) == words
    assert evidence_of(RuntimeError(f"rank 1: {code}")) == f"RuntimeError: rank 1: {words}"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert evidence_of(caught.value).startswith("DefaultCPUAllocator: can't allocate memory: you tried to allocate ")


def test_where_memory_ran_out_the_innermost_phase_is_told() -> None:
    with pytest.raises(MemoryError) as caught, during("in the check"), during("in decode"):
        raise MemoryError("x" * 10_000)
    assert evidence_of(caught.value).endswith("..., in decode")
    assert len(evidence_of(caught.value)) == 400
    with pytest.raises(ValueError, match="a") as other, during("in decode"):
        raise ValueError("a")
    assert evidence_of(other.value) == "ValueError: a"


@pytest.mark.parametrize(
    ("evidence", "broken"),
    [
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", True),
        ("RuntimeError: Triton Error [CUDA]: device-side assert triggered", True),
        ("RuntimeError: shape '[2, 3]' is invalid for input of size 5", False),
        ("the correctness check failed: cached decode tokens against hf: error 0.3, tolerance 0.01", False),
    ],
)
def test_what_a_device_keeps_is_told_apart(evidence: str, broken: bool) -> None:
    assert breaks_device(evidence) == broken


@pytest.mark.parametrize(
    ("kind", "status"), [(resource.RLIMIT_DATA, "oom"), (resource.RLIMIT_AS, "oom"), (resource.RLIMIT_NOFILE, "error")]
)
def test_a_library_that_does_not_say_of_what_it_failed_is_believed_to_lack_memory_where_that_is_limited(
    kind: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN says so where the system gives it no memory for its code, and where something is not supported."""
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (3 << 30 if asked == kind else resource.RLIM_INFINITY,) * 2)
    error = RuntimeError("could not create a primitive")
    assert status_of(error) == status
    assert ("where the process may take 3.00 GiB" in evidence_of(error)) == (status == "oom")
    assert status_of(RuntimeError("could not create a primitive descriptor for a matmul primitive")) == "error"
