"""Writes the tables of README.md and benchmarks/RESULTS.md from the records in benchmarks/results/.

python benchmarks/render.py            writes them
python benchmarks/render.py --check    exits 1 and names the files that are stale
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from inferometer.bench.journal import read_records
from inferometer.bench.record import Record
from inferometer.report.tables import comparison_table, document, latency_table, notes

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- demo -->\n", "<!-- /demo -->"


def readme(text: str, records: list[Record]) -> str:
    """README.md with the demo's tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    native = [record for record in records if record.backend == "native"]
    tables = "\n\n".join((latency_table(native), comparison_table(records), notes(records)))
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def results(files: list[Path]) -> str:
    """RESULTS.md: a part a file, and in it the tables of each sweep."""
    parts = [
        "# Results",
        "Written by `python benchmarks/render.py` from the records in `benchmarks/results/`; each file is one run on one machine.",
    ]
    for file in files:
        records = read_records(file)
        card = records[0].device_name
        parts.append(f"## {file.stem}: {card}, torch {records[0].environment['torch']}, {records[0].started_at[:10]}")
        for (model, dtype, _), sweep in groupby(records, key=lambda r: (r.model, r.dtype, r.forward_only)):
            # One heading level deeper than the tables have on their own.
            parts.append(f"### {model}, {dtype}\n\n" + document(list(sweep)).replace("\n## ", "\n#### ").rstrip())
    return "\n\n".join(parts) + "\n"


def main(check: bool) -> int:
    """Writes the two files, or with `check` says which differ from their records."""
    files = sorted(RESULTS.glob("*.jsonl"))
    page = ROOT / "README.md"
    wanted = {page: readme(page.read_text(), read_records(RESULTS / "demo.jsonl")), ROOT / "benchmarks" / "RESULTS.md": results(files)}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run python benchmarks/render.py", file=sys.stderr)
        else:
            path.write_text(wanted[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
