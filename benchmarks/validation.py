"""Recomputes what the estimator is held to.

python benchmarks/validation.py            our own runs among the measured rows, the table of errors, and benchmarks/VALIDATION.md
python benchmarks/validation.py --check    exits 1 and names the files that are stale
python benchmarks/validation.py --refit [REGIME ...]    fits the constants of every fold of these regimes (of all, if none is named)
                                           anew first, which takes minutes; then as without it
python benchmarks/validation.py --suggest REGIME ...    prints the constants that all rows of these regimes that may be fitted give, for
                                           stacks.toml: own-time is for the native stack, once the engine was measured anew

Our own rows are read from benchmarks/results/*.jsonl and the studies under results/, of GPUs that the catalogue has, and the decode steps
of benchmarks/kernels.py from benchmarks/measurements; those that are the host's are shown and not counted. A calibration beside a file of
records, as NAME.calibration.json (one device's object of the file in the cache's calibration folder), goes with its rows, and
studies-h200.calibration.json with those under results/.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from inferometer.bench.prediction.hindsight import estimate_of
from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Record
from inferometer.estimate.crossfit import FITS, fit, fits_toml, group, load_fits, parts
from inferometer.estimate.deviation import ERRORS, deviations_toml
from inferometer.estimate.explanation import explain
from inferometer.estimate.measured.load import load_calibration, load_regimes, load_rows
from inferometer.estimate.operations import series
from inferometer.estimate.validation import validate
from inferometer.report.estimates.validation import document

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STUDIES = ROOT / "results"
KERNELS = ROOT / "benchmarks" / "measurements" / "kernels-h200.jsonl"
MEASURED = Path(str(files("inferometer.estimate.measured")))
PAGE = ROOT / "benchmarks" / "VALIDATION.md"
GIB = 1 << 30

STACKS = {"native": ("native", "own-time", "own-memory"), "hf": ("hf-eager", "own-hf-time", "own-hf-memory")}
STUDIED = {
    "native": ("native", "own-studies-prompts", "own-studies-exposed"),
    "hf": ("hf-eager", "own-studies-hf", "own-studies-hf-exposed"),
    "deepspeed": ("deepspeed", "own-studies-deepspeed", "own-studies-deepspeed-exposed"),
}
"""Of backends, the stack, and the regimes of times that the device decides and of those in which the host has a say."""
DECODE = {"native": "own-studies-decode"}
"""Where decode steps have one of their own."""
KERNEL_STEPS = 40
"""Steps that benchmarks/kernels.py makes around the context that it tells."""
FIRST_KERNELS = "2026-11-28"
"""Of records that do not say when."""
HOSTS = (("gpt3-125m", 4),)
"""Models and batches whose step there is the host's, one that was twice as slow as others are."""
GPUS = ("h100-sxm", "h200")
CALIBRATED = {"h200": "studies-h200"}
"""Of cards that studies ran on, a calibration, which studies keep none of: of the evening on which most of their records were made. Two
such cards, or one on two days, multiply at rates that are 5 % apart."""
HEAD = """\
# This product's own runs, the median of each case's. Rows change with the engine, so they inform and gate nothing; steps that are the
# host's are shown and not counted. Written by `python benchmarks/validation.py` from benchmarks/results.
source = "benchmarks/results"
"""
STUDIES_HEAD = """\
# What this product's own studies measured, the median of each case's. They inform and gate nothing, and tell how far the estimates of the
# stacks that ran are off. Written by `python benchmarks/validation.py` from results/.
source = "results"
"""


def own_rows(folder: Path) -> str:
    """rows/own.toml: a table for the figures that have all but a few columns in common."""
    kept = [(file.stem, record) for file in sorted(folder.glob("*.jsonl")) for record in read_records(file)]
    kept = [(stem, record) for stem, record in kept if record.status == "ok" and record.device in GPUS and record.admission is None]
    tables: dict[str, list[str]] = {}
    for stem, record in kept:
        for regime, mode, figure in figures(record):
            head = heading(stem, record, regime, stack=STACKS[record.backend][0])
            new = {"generate": record.decode_length, "decode": record.steps}.get(mode) or 0
            columns = (record.case_id, record.model, record.dtype, mode, record.batch_size, record.sequence_length, new, figure)
            tables.setdefault(head, []).append(f"    {json.dumps(columns)},\n")
    for head, columns in kernel_rows(KERNELS):
        tables.setdefault(head, []).append(f"    {json.dumps(columns)},\n")
    return "\n".join([HEAD, *(f"{head}rows = [\n{''.join(rows)}]\n" for head, rows in tables.items())])


def study_rows(folder: Path) -> str:
    """rows/studies.toml: times that the studies measured, of cards with a calibration."""
    tables: dict[str, dict[str, str]] = {}
    for file in sorted(folder.glob("*/records.jsonl")):
        for record in read_records(file):
            if record.status != "ok" or record.backend not in STUDIED or record.device not in CALIBRATED or record.admission is not None:
                continue
            found = estimate_of(record, load_calibration(CALIBRATED[str(record.device)]))
            exposed = {phase == "decode_token_ms": each.cost.exposed for phase, each in found.phases.items()}
            for mode, figure in times(record):
                head, row_id, columns = study_row(file.parent.name, record, mode, figure, host_has_a_say=exposed[mode == "decode"])
                tables.setdefault(head, {})[row_id] = f"    {json.dumps(columns)},\n"
    return "\n".join([STUDIES_HEAD, *(f"{head}rows = [\n{''.join(rows.values())}]\n" for head, rows in tables.items())])


def study_row(study: str, record: Record, mode: str, figure: float, *, host_has_a_say: bool) -> tuple[str, str, tuple[Any, ...]]:
    """(a table's head, what tells rows apart, a row). host_has_a_say: whether it is expected to."""
    stack, decided, exposed = STUDIED[record.backend]
    settings = [study, *([record.backend] if record.backend != "native" else []), *([record.quantize] if record.quantize else [])]
    stem = "-".join([*settings, *([f"tp{record.gpus}"] if record.gpus > 1 else [])])
    new = record.steps if mode == "decode" else 0
    columns = (record.case_id, record.model, record.dtype, mode, record.batch_size, record.sequence_length, new or 0, figure)
    own = DECODE.get(record.backend) if mode == "decode" else None
    regime = own or (exposed if host_has_a_say else decided)
    head = heading(stem, record, regime, stack=stack, calibration=CALIBRATED[str(record.device)])
    return head, f"{stem} {columns[1:-1]}", columns


def kernel_rows(file: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(a table's head, a row) for each decode step of whole models that benchmarks/kernels.py has measured."""
    for line in file.read_text("utf-8").splitlines():
        record = json.loads(line)
        model, batch, date = record["model"], record["batch_size"], record.get("started_at", FIRST_KERNELS)[:10]
        fields = {
            "regime": "own-time", "id": file.stem + "-{model}-{dtype}-b{batch}-{prompt_tokens}+{new_tokens}-{mode}", "date": date,
            "revision": f"0.1.0.dev0, {date}", "stack": "native", "device": "h200", "quantity": "time_ms", "calibration": "own-h200",
        }  # fmt: skip
        if (model, batch) in HOSTS:
            fields["counted"] = False
        start = record["context"] - KERNEL_STEPS // 2
        columns = (record["measured"], model, "bfloat16", "decode", batch, start, KERNEL_STEPS, round(record["step_ms"], 4))
        yield table_head(fields), columns


def figures(record: Record) -> Iterator[tuple[str, str, float]]:
    """(regime, mode, value) of what a record measured."""
    _, regime, memory = STACKS[record.backend]
    for mode, ms in times(record):
        yield regime, mode, ms
    if record.peak_memory_bytes.allocated is not None:
        yield memory, "forward" if record.forward_only else "generate", round(record.peak_memory_bytes.allocated / GIB, 5)


def times(record: Record) -> Iterator[tuple[str, float]]:
    """(mode, milliseconds), the median."""
    for mode, summary in (("forward", record.forward_ms), ("prefill", record.prefill_ms), ("decode", record.decode_token_ms)):
        if summary is not None:
            yield mode, round(summary.p50, 4)


def heading(stem: str, record: Record, regime: str, *, stack: str, calibration: str | None = None) -> str:
    """A table's own values: what all its rows share. calibration: the file's own if that is None."""
    fields: dict[str, Any] = {
        "regime": regime,
        "id": stem + "-{model}-{dtype}-b{batch}-{prompt_tokens}+{new_tokens}-{mode}",
        "date": record.started_at[:10],
        "revision": f"{record.stack_version}, {record.started_at[:10]}",
        "stack": stack,
        "device": record.device,
        "quantity": load_regimes()[regime].quantity,
    }
    if record.quantize:
        fields["quantize"] = record.quantize
    if record.gpus > 1:
        fields |= {"gpus": record.gpus, "parallel": "tensor", "link": record.link or "nvlink"}
    if record.loss:
        fields["loss"] = True
    if calibration is not None or (RESULTS / f"{stem}.calibration.json").is_file():
        fields["calibration"] = calibration or stem
    return table_head(fields)


def table_head(fields: Mapping[str, Any]) -> str:
    """A table's own values, as TOML."""
    columns = ["place", "model", "dtype", "mode", "batch", "prompt_tokens", "new_tokens", "value"]
    return "[[table]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**fields, "columns": columns}.items())


def refit(chosen: Sequence[str]) -> str:
    """fits.toml: the constants of every fold, anew for the chosen regimes; the others keep theirs."""
    from inferometer.estimate.fitted import fitted
    from inferometer.estimate.predict import predict

    found: dict[str, Mapping[str, Mapping[str, Mapping[str, float]]]] = {}
    for name, regime in load_regimes().items():
        ranges = fitted(name)
        if name not in chosen:
            found |= {name: load_fits()[name]} if name in load_fits() else {}
            continue
        mine: dict[str, dict[str, Mapping[str, float]]] = {}
        for part in parts(regime, load_rows(name)) if ranges else ():
            print(f"{name}: {part.fold}: {part.group}: {len(part.rows)} rows", file=sys.stderr)
            mine.setdefault(part.fold, {})[part.group] = fit(part.rows, ranges, predict)
        found |= {name: mine} if mine else {}
    return fits_toml(found)


def suggest(chosen: Sequence[str]) -> None:
    """Prints each group's constants: of the fitted rows where a split names them, else of all that count."""
    from inferometer.estimate.fitted import fitted
    from inferometer.estimate.predict import predict

    for name in chosen:
        allowed = load_regimes()[name].split.fitted
        rows = [row for row in load_rows(name) if row.counted and (row.id in allowed or not allowed)]
        for kind in dict.fromkeys(map(group, rows)):
            found = fit([row for row in rows if group(row) == kind], fitted(name), predict)
            print(f"# {name}: {kind}", *(f"{constant} = {value!r}" for constant, value in found.items()), sep="\n")


def main() -> int:
    """Writes the files, or with --check says which differ from what the code and the rows give."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--refit", nargs="*", metavar="REGIME")
    parser.add_argument("--suggest", nargs="+", metavar="REGIME")
    chosen = parser.parse_args()
    if chosen.check and chosen.refit is not None:
        parser.error("--refit writes what --check only compares")
    unknown = sorted({*(chosen.refit or ()), *(chosen.suggest or ())} - set(load_regimes()))
    if unknown:
        parser.error(f"there is no regime {unknown[0]}")
    if chosen.suggest:
        suggest(chosen.suggest)
        return 0
    # Rows are told apart by what is expected beside their calibration.
    stale = _settle(_calibrations(), check=chosen.check)
    if not chosen.check:
        _forget()
    rows = {"own": own_rows(RESULTS), "studies": study_rows(STUDIES)}
    stale += _settle({MEASURED / "rows" / f"{name}.toml": text for name, text in rows.items()}, check=chosen.check)
    if not chosen.check:
        _forget()
    if chosen.refit is not None:
        _settle({MEASURED / FITS: refit(chosen.refit or list(load_regimes()))}, check=False)
        _forget()
    reports = validate()
    errors = {report.regime.name: error for report in reports if (error := report.deviation()) is not None}
    stale += _settle(
        {MEASURED / ERRORS: deviations_toml(errors), PAGE: document(reports, operations=series(), explained=explain(reports))},
        check=chosen.check,
    )
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale: run python benchmarks/validation.py", file=sys.stderr)
    return 1 if stale else 0


def _calibrations() -> dict[Path, str]:
    folder = MEASURED / "calibrations"
    return {folder / f"{p.name.removesuffix('.calibration.json')}.json": p.read_text("utf-8") for p in RESULTS.glob("*.calibration.json")}


def _settle(wanted: dict[Path, str], *, check: bool) -> list[Path]:
    """The files that differ, when checking; else none, and they are written."""
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale if not check else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
    return stale if check else []


def _forget() -> None:
    """What was read from files that are new now is read again."""
    from inferometer.estimate.measured import load

    load._rows.cache_clear()
    load_fits.cache_clear()


if __name__ == "__main__":
    sys.exit(main())
