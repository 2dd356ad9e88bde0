"""Writes the studies' tables in README.md from the records under results/, and puts records there.

python benchmarks/study_results.py            writes README.md
python benchmarks/study_results.py --check    exits 1 if README.md is stale
python benchmarks/study_results.py --add DIR [DIR ...]
                                              keeps folders of `inferometer study run` as results/NAME, compact, and writes README.md;
                                              folders of one study, as of machines that shared it, are put together, in any order:
                                              of a question the newest answer stays; `--add results/* DIR` goes on with what is there
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from inferometer.bench.records.compact import compacted
from inferometer.bench.records.record import Record
from inferometer.bench.study.file import resolved_text
from inferometer.bench.study.folder import RECORDS, STUDY, Key, key_of, latest, read_folder
from inferometer.bench.study.study import Study
from inferometer.errors import UserError
from inferometer.report.markup.parts import Grid, Heading, Paragraph, Part, joined, written
from inferometer.report.study.tables import document_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
RESULTS = ROOT / "results"
BEGIN, END = "<!-- studies -->\n", "<!-- /studies -->"
# What users compare by stands first: whole stacks beside each other over batch sizes, then the time of a token over sizes of a model.
TELLING = {
    "backend-sweep": "Throughput (tokens/sec | msec/token)",
    "gpt3-latency": "Time per token (ms), batch_size={batch_size}: stacks beside each other",
}
STUDIES, TABLES = 2, 2
# Settings that a run may be given without asking another question; of the first two a record says its own.
TOLD, EFFORT = ("runs", "warmups"), ("runs", "warmups", "energy", "tuning_seconds", "timeout_s")


def section(folders: Sequence[Path]) -> str:
    """The tables of at most two studies, and how to see what else lies there."""
    found = dict(sorted((study.name, (study, records)) for study, records in map(_read, folders)))
    order = [*(name for name in TELLING if name in found), *(name for name in found if name not in TELLING)]
    if not order:
        return "No study's records lie under `results/` yet."
    shows = [f"`inferometer study show {RESULTS.name}/{name}` ({_coverage(*found[name])})" for name in order]
    more = f"Every table of a study, with what stands beside it, and how many of its cases have run: {joined(shows)}."
    return "\n\n".join([*(_study(*found[name]) for name in order[:STUDIES]), more])


def add(folders: Sequence[Path]) -> list[Path]:
    """Keeps, of each question, what was measured last, and the study of the folder that was written to last; returns where.

    Of that study's effort only what holds for all that is kept: the records say their own.

    What was skipped says what one machine lacked, so it stays only where its column ran on none.
    """
    found: dict[Path, list[tuple[str, list[Record]]]] = {}
    for folder in folders:
        file, records = read_folder(folder)
        found.setdefault(RESULTS / file.study().name, []).append(((folder / STUDY).read_text("utf-8"), records))
    for target, runs in found.items():
        study, _ = max(runs, key=lambda run: max(record.started_at for record in run[1]))
        kept = _kept([record for _, records in runs for record in latest(records).values()])
        target.mkdir(parents=True, exist_ok=True)
        (target / STUDY).write_text(_claimed(study, [text for text, _ in runs], kept), "utf-8")
        lines = (json.dumps(line, allow_nan=False, separators=(",", ":")) for line in compacted(kept))
        (target / RECORDS).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return list(found)


def _claimed(study: str, studies: Sequence[str], records: Sequence[Record]) -> str:
    """The study without the effort in which the studies put together differ, or that not all of the records had."""
    document, others = tomllib.loads(study), [tomllib.loads(each)["fixed"] for each in studies]
    fixed = document["fixed"]
    wrong = {name for name in EFFORT if name in fixed and any(other.get(name) != fixed[name] for other in others)}
    parts = {part["name"]: part for part in document["part"]}
    for record in records:
        if record.status == "skipped" or record.part not in parts:
            continue
        own = _own(parts[record.part], record.column)
        wrong |= {name for name in TOLD if name in fixed and name not in own and fixed[name] != getattr(record, name)}
    if not wrong:
        return study
    said = f"# Records of several runs are together here: of {joined(sorted(wrong))} each record says its own.\n"
    kept = {name: value for name, value in fixed.items() if name not in wrong}
    return said + resolved_text({**document, "fixed": kept})


def _own(part: dict[str, Any], column: str | None) -> set[str]:
    """The settings that a part, one of its axes or its column gives, whatever the study's are."""
    points = [point for points in part.get("axes", {}).values() for point in points if isinstance(point, dict)]
    columns = [each for each in part["columns"] if each["name"] == column]
    return set(part.get("axes", {})).union(part.get("fixed", {}), *points, *columns)


def _kept(records: Sequence[Record]) -> list[Record]:
    """One record of each question: the newest that is of a run, else the newest; in the order in which questions were first answered."""
    ran = {_column(record) for record in records if record.status != "skipped"}
    found: dict[Key, Record] = {}
    for record in records:
        if record.status == "skipped" and _column(record) in ran:
            continue
        before = found.setdefault(key_of(record), record)
        if (record.status != "skipped", record.started_at) > (before.status != "skipped", before.started_at):
            found[key_of(record)] = record
    return list(found.values())


def _column(record: Record) -> tuple[object, ...]:
    """What a machine can run, or cannot."""
    return (record.part, record.column, record.tensor_parallel)


def _read(folder: Path) -> tuple[Study, list[Record]]:
    file, records = read_folder(folder)
    return file.study(), list(latest(records).values())


def _study(study: Study, records: Sequence[Record]) -> str:
    """A study's telling table as measured; folded away, what stands beside it."""
    telling = [table for table in study.tables if table["title"] == TELLING.get(study.name)]
    tables = telling or [table for table in study.tables if table.get("kind", "grid") not in ("launcher", "parameters")][:1]
    said = [f"### {study.title}", _about(study, records)]
    for title, parts in _titled(document_parts(replace(study, tables=tuple(tables), document=None), records))[:TABLES]:
        # What follows the first caption is the same table from another source.
        measured = list(takewhile(lambda part: not isinstance(part, Paragraph), parts))
        said.append(written([Heading(4, title), *measured], "md").rstrip())
        beside = parts[len(measured) :]
        if beside:
            said.append(f"<details>\n<summary>Beside it</summary>\n\n{written(beside, 'md')}\n</details>")
    return "\n\n".join(said)


def _titled(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """The tables among a document's parts, each under its title; headings of nothing, and what stands before the first, are left out."""
    found: list[tuple[str, list[Part]]] = []
    for part in parts:
        if isinstance(part, Heading):
            found.append((part.text, []))
        elif found:
            found[-1][1].append(part)
    return [(title, each) for title, each in found if each and isinstance(each[0], Grid)]


def _coverage(study: Study, records: Sequence[Record]) -> str:
    """Of the cases that a study asks for, how many ran, whatever became of them."""
    parts = {part.name for part in study.parts}
    ran = sum(record.status != "skipped" and record.part in parts for record in records)
    return f"{ran} of {sum(cell.excluded is None for cell in study.cells())}"


def _about(study: Study, records: Sequence[Record]) -> str:
    """What ran, on what, with what, when, and how often: a figure of one run has no spread to judge it by."""
    measured = [record for record in records if record.status != "skipped"] or list(records)
    facts = [
        joined(list(dict.fromkeys(record.model for record in measured))) if len({record.model for record in measured}) < 4 else "",
        joined(list(dict.fromkeys(record.device_name or "an unknown device" for record in measured))),
        *(f"{name} {joined(sorted(found))}" for name in ("torch", "transformers") if (found := _versions(measured, name))),
        " to ".join(sorted({min(days := [record.started_at[:10] for record in measured]), max(days)})),
    ]
    runs = sorted({record.runs for record in measured})
    facts.append(f"{' to '.join(str(count) for count in sorted({runs[0], runs[-1]}))} run{'s' * (runs[-1] > 1)} a case")
    counts = Counter(record.status for record in records)
    facts.append(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    return f"{study.summary or ''} {'; '.join(fact for fact in facts if fact)}.".strip()


def _versions(records: Sequence[Record], name: str) -> set[str]:
    return {str(record.environment[name]) for record in records if record.environment.get(name)}


def wanted(text: str) -> str:
    """README.md with the tables between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{PAGE.name} has no place for the studies' tables: the lines {BEGIN.strip()} and {END}")
    folders = sorted(path.parent for path in RESULTS.glob(f"*/{STUDY}"))
    return f"{before}{BEGIN}\n{section(folders)}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 if --check finds README.md stale, 2 for wrong usage."""
    try:
        if arguments[:1] == ["--add"] and len(arguments) > 1:
            for target in add([Path(folder) for folder in arguments[1:]]):
                print(f"{target.relative_to(ROOT)} written", file=sys.stderr)
        elif list(arguments) not in ([], ["--check"]):
            raise UserError("use no argument, --check, or --add DIR [DIR ...]")
        text = PAGE.read_text("utf-8")
        new = wanted(text)
    except UserError as error:
        print(f"study_results.py: error: {error}", file=sys.stderr)
        return 2
    if new != text and "--check" in arguments:
        print(f"{PAGE.name} is stale: run python benchmarks/study_results.py", file=sys.stderr)
        return 1
    if new != text:
        PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
