"""The tables in README.md and benchmarks/RESULTS.md are those of the stored records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def render(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(root / "benchmarks" / "render.py"), *arguments], capture_output=True, text=True, check=False)


def test_the_tables_are_those_of_the_records() -> None:
    done = render("--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_table_is_named_and_mended(tmp_path: Path) -> None:
    for folder in ("results", "measurements"):
        (tmp_path / "benchmarks" / folder).mkdir(parents=True)
        for file in (ROOT / "benchmarks" / folder).glob("*.jsonl"):
            (tmp_path / "benchmarks" / folder / file.name).write_bytes(file.read_bytes())
    for file in (ROOT / "results").glob("*/*"):
        (tmp_path / "results" / file.parent.name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "results" / file.parent.name / file.name).write_bytes(file.read_bytes())
    for name in ("README.md", "benchmarks/RESULTS.md", "benchmarks/render.py", "benchmarks/targets.py", "benchmarks/targets.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    page = tmp_path / "README.md"
    page.write_text(page.read_text().replace("% of bound", "% of magic"))
    stale = render("--check", root=tmp_path)
    assert stale.returncode == 1
    assert "README.md is stale" in stale.stderr
    assert render(root=tmp_path).returncode == 0
    assert render("--check", root=tmp_path).returncode == 0
