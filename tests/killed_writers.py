"""A process that makes something beside its place, and is killed before it is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEFT = "4.9 KiB"
"""What it leaves."""

_WRITER = """
import sys, time
from pathlib import Path
from inferometer.model.scratch import scratch_beside
with scratch_beside(Path(sys.argv[1])) as made:
    (made / "a").mkdir()
    (made / "a" / "b").write_bytes(b"x" * 5000)
    print(made, flush=True)
    time.sleep(600)
"""


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """The folder of what another process makes, which is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(target)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Path(process.stdout.readline().strip())
        finally:
            process.kill()


def leave(target: Path) -> Path:
    """What a process has left that was killed."""
    with writing(target) as made:
        pass
    assert (made / "a" / "b").is_file()
    return made
