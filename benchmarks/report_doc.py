"""Writes the report that docs/report.md shows, from benchmarks/results/demo.jsonl.

python benchmarks/report_doc.py            writes it
python benchmarks/report_doc.py --check    exits 1 if it is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from inferometer.report.markup.parts import written
from inferometer.report.records.gathering import gather
from inferometer.report.tables.summary import summary_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "report.md"
RECORDS = Path("benchmarks/results/demo.jsonl")
BEGIN, END = "<!-- report -->\n", "<!-- /report -->"


def document(text: str) -> str:
    """The page with the beginning of the report between its markers, up to the first column's percentiles."""
    gathered = gather([ROOT / RECORDS])
    report = written(summary_parts(gathered.records, title=RECORDS.stem, remarks=gathered.remarks), "md")
    shown = report.partition("\n### ")[0].rstrip()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}```\n$ inferometer report {RECORDS}\n{shown}\n...\n```\n{END}{after}"


def main(check: bool) -> int:
    """Writes the page, or with `check` says that it differs from its records."""
    text = PAGE.read_text("utf-8")
    wanted = document(text)
    if text == wanted:
        return 0
    if check:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python benchmarks/report_doc.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
