"""How a process that ends by itself is told of, with scripts in the place of the interpreter."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.bench.backends.entries import NATIVE
from inferometer.bench.conduct import worker_process
from inferometer.bench.conduct.worker_process import WorkerEndedError, WorkerProcess

ENDED = "the process ended with code 1, before it could be asked anything"


def process(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, shell: str = "/bin/sh") -> WorkerProcess:
    """A process that runs a script."""
    path = folder / "python"
    path.write_text(f"#!{shell}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv(NATIVE.python_variable, str(path))
    return WorkerProcess(replace(NATIVE))


@pytest.mark.parametrize(
    ("script", "status", "evidence"),
    [
        ("exit 7", "error", "the process ended with code 7, before it could be asked anything"),
        ("echo a word >&2; kill -SEGV $$", "error", "the process was ended by SIGSEGV, before it could be asked anything; its"),
        ("echo what: std::bad_alloc >&2; kill -ABRT $$", "oom", "the process was ended by SIGABRT"),
        ("echo MemoryError >&2; exit 1", "oom", "the process ended with code 1"),
        ("printf 'Traceback:\\n  File a\\nMemoryError: 3 GiB\\nbye\\n' >&2; exit 1", "oom", f"{ENDED}; its last words: MemoryError: 3 GiB"),
        ("kill -KILL $$", "error", "the process was ended by SIGKILL, before it could be asked anything"),
    ],
)  # fmt: skip
def test_a_process_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: str, evidence: str) -> None:
    worker = process(tmp_path, monkeypatch, script)
    try:
        with pytest.raises(WorkerEndedError) as caught:
            worker.release(60)
    finally:
        worker.close()
    assert caught.value.status == status
    assert caught.value.evidence.startswith(evidence)


def test_the_system_s_killer_is_recognised_by_its_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(worker_process, "kills", lambda: next(counts))
    worker = process(tmp_path, monkeypatch, "kill -KILL $$")
    with pytest.raises(WorkerEndedError, match="by SIGKILL of the system's out-of-memory killer") as caught:
        worker.release(60)
    worker.close()
    assert caught.value.status == "oom"


def test_a_process_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "START_S", 0.05)
    worker = process(tmp_path, monkeypatch, "exec sleep 600")
    with pytest.raises(WorkerEndedError, match=r"did not start within 0\.05 s") as caught:
        worker.release(60)
    assert caught.value.status == "error"
    worker.close()


DEAF = r"""
import os, sys
end = int(sys.argv[3])
os.write(end, b'{"resident_bytes": 0}\n')
while os.read(end, 1 << 16):
    pass
"""


def test_a_step_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = process(tmp_path, monkeypatch, DEAF, sys.executable)
    with pytest.raises(WorkerEndedError, match="while it ran") as caught:
        worker.run(warmups=0, runs=1, limit_s=0.05)
    assert caught.value.status == "timeout"
    worker.close()


SPEAK = r"""
import os, sys
end = int(sys.argv[3])
os.write(end, b'{"resident_bytes": 0}\n{"resident_bytes": 5, "skipped": "no"}\n{"resident_')
os.read(end, 1)
os.write(end, b'bytes": 7}\n')
os.read(end, 1 << 16)
os.close(end)
os.read(0, 1)
"""


def test_answers_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = process(tmp_path, monkeypatch, SPEAK, sys.executable)
    assert worker.release(60).skipped == "no"
    assert worker.resident_bytes == 5
    assert worker.release(60).resident_bytes == 7
    with pytest.raises(WorkerEndedError, match="the process ended with code 0, while the model was dropped"):
        worker.release(60)
    worker.close()


def test_last_words_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = process(tmp_path, monkeypatch, 'i=0; while [ $i -lt 500 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1')
    with pytest.raises(WorkerEndedError) as caught:
        worker.release(60)
    worker.close()
    assert caught.value.evidence.endswith("line 499")
    assert len(caught.value.evidence) < 400
