"""Writes the tables of README.md and benchmarks/RESULTS.md from the records in benchmarks/results/ and benchmarks/measurements/.

python benchmarks/render.py            writes them
python benchmarks/render.py --check    exits 1 and names the files that are stale
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from targets import outcomes, page, read_targets

from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Record
from inferometer.report.tables.benchmark import comparison_table, document, latency_table
from inferometer.report.tables.benchmark_notes import notes

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MEASUREMENTS = ROOT / "benchmarks" / "measurements"
BEGIN, END = "<!-- demo -->\n", "<!-- /demo -->"


def readme(text: str, records: list[Record]) -> str:
    """README.md with the demo's tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    native = [record for record in records if record.backend == "native"]
    tables = "\n\n".join((latency_table(native), comparison_table(records), notes(records)))
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def head() -> str:
    """RESULTS.md up to its tables: what the product is held to, and what came of it."""
    return "\n\n".join((
        "# Results",
        "Written by `python benchmarks/render.py` from the records in `benchmarks/results/` and `benchmarks/measurements/`; each file is "
        "one run on one machine.",
        page(outcomes(read_targets(ROOT / "benchmarks" / "targets.toml"), [RESULTS, MEASUREMENTS, ROOT / "results"])),
    ))  # fmt: skip


def results(files: list[Path]) -> str:
    """The tables of `inferometer bench`: a part a file, and in it those of each sweep."""
    parts = []
    for file in files:
        records = read_records(file)
        card = records[0].device_name
        parts.append(f"## {file.stem}: {card}, torch {records[0].environment['torch']}, {records[0].started_at[:10]}")
        for (model, dtype, _), sweep in groupby(records, key=lambda r: (r.model, r.dtype, r.forward_only)):
            # One heading level deeper than the tables have on their own.
            parts.append(f"### {model}, {dtype}\n\n" + document(list(sweep)).replace("\n## ", "\n#### ").rstrip())
    return "\n\n".join(parts) + "\n"


def measurements(files: list[Path]) -> str:
    """The rest of RESULTS.md: what benchmarks other than `inferometer bench` measured, a part a file and a table a kind."""
    parts = []
    for file in files:
        records: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
        about = records[0]
        parts.append(f"## {file.stem}: {about['device_name']}, torch {about['environment']['torch']}{_ceilings(about)}")
        if "means" in about:
            parts.append(about["means"])
        for kind, alike in groupby(records, key=lambda record: record["measured"]):
            parts.append(f"### {kind}\n\n{_table(list(alike))}")
    return "".join(f"\n{part}\n" for part in parts)


def _ceilings(about: dict[str, Any]) -> str:
    """What the device reached that everything stands beside, where it was measured: a processor's matrix rate is not always known."""
    units = (("copy", "copy_bytes_s", 1e9, "GB/s"), ("bfloat16", "bf16_flop_s", 1e12, "TFLOP/s"))
    parts = [f"{what} {about[key] / scale:.3g} {unit}" for what, key, scale, unit in units if about.get(key) is not None]
    return f", {', '.join(parts)} in the same run" if parts else ""


def _table(records: list[dict[str, Any]]) -> str:
    """A row a figure, a column a record; the other way round where there are more records than figures. Figures that none has are left
    out."""
    names = [name for name, value in records[0].items() if not isinstance(value, dict | list) and name not in _ABOUT]
    names = [name for name in names if any(record.get(name) is not None for record in records)]
    rows = [[name, *(_figure(record.get(name)) for record in records)] for name in names]
    if len(records) > len(names):
        rows = [list(row) for row in zip(*rows, strict=True)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


_ABOUT = ("measured", "means", "started_at", "device_name", "copy_bytes_s", "bf16_flop_s")


def _figure(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main(check: bool) -> int:
    """Writes the two files, or with `check` says which differ from their records."""
    start = ROOT / "README.md"
    tables = head() + "\n\n" + results(sorted(RESULTS.glob("*.jsonl"))) + measurements(sorted(MEASUREMENTS.glob("*.jsonl")))
    wanted = {start: readme(start.read_text(), read_records(RESULTS / "demo.jsonl")), ROOT / "benchmarks" / "RESULTS.md": tables}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run python benchmarks/render.py", file=sys.stderr)
        else:
            path.write_text(wanted[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
