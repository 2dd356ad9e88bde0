"""Writes docs/published-tables.md from the claims about the published tables: python benchmarks/published_tables.py [--check]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inferometer.bench.study.library import shipped
from inferometer.report.study.document_notes import page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "published-tables.md"


def main() -> int:
    """0 when the page is written, or with --check is as it would be written; else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    arguments = parser.parse_args()
    studies = [file.study() for file in shipped().values()]
    text = page({study.document: study.title for study in studies if study.document is not None})
    if arguments.check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is stale: run python benchmarks/published_tables.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
