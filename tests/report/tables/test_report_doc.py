"""docs/report.md shows what the command prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60, check=False)


def test_the_page_is_fresh() -> None:
    done = run("benchmarks/report_doc.py", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_it_shows_is_what_the_command_prints() -> None:
    shown = (ROOT / "docs" / "report.md").read_text("utf-8").partition("<!-- report -->\n```\n$ inferometer report ")[2]
    file, _, rest = shown.partition("\n")
    printed = run("-m", "inferometer", "report", file).stdout
    assert printed.startswith(rest.partition("\n...\n")[0])
    assert len(rest.partition("\n...\n")[0]) > 500
