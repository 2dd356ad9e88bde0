"""The benchmark's Markdown: what was asked, latency, throughput, and how backends compare. Pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary
from inferometer.report.markup.markdown import table
from inferometer.report.tables.benchmark_notes import notes
from inferometer.report.tables.serving import served, serving_document
from inferometer.report.tables.steps import Step, failed, size_of, steps_of
from inferometer.report.tables.words import shown

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""A header, and rows of as many cells."""


def document(records: Sequence[Record]) -> str:
    """Everything about one sweep: its parameters once, then latency and throughput of each backend, then their comparison.

    All records are of one workload, at several batch sizes, on one or more backends. Raises ValueError for none.
    """
    if not records:
        raise ValueError("a report needs at least one record")
    if served(records[0]):
        return serving_document(records)
    backends = list(dict.fromkeys(r.backend for r in records))
    parts = [_setting(records), parameter_table(records[0])]
    for backend in backends:
        mine = [r for r in records if r.backend == backend]
        if len(backends) > 1:
            parts.append(f"## Backend: {backend} ({mine[0].stack_version})")
        parts += [latency_table(mine), throughput_table(mine)]
    parts += [text for text in (comparison_table(records), notes(records)) if text]
    return "\n\n".join(parts) + "\n"


def parameter_rows(record: Record) -> list[tuple[str, str]]:
    """What was asked, in twelve rows, more of an admission, of what lives elsewhere and of deterministic numerics; unset is None.

    Decode Length is None for a forward alone, Sequence Length for steps at contexts that nothing was prefilled for.
    """
    sampling = record.sampling
    rows = [
        ("Model", record.model),
        ("Sequence Length", None if record.decode_only else record.sequence_length),
        ("Decode Length", record.decode_length),
        ("N Runs", record.runs),
        ("Warmups", record.warmups),
        ("Temperature", sampling.get("temperature")),
        ("Top K", sampling.get("top_k")),
        ("Top P", sampling.get("top_p")),
        ("Typical P", sampling.get("typical_p")),
        ("Repetition Penalty", sampling.get("repetition_penalty")),
        ("Watermark", sampling.get("watermark", False)),
        ("Do Sample", sampling.get("do_sample", False)),
    ]
    if record.admission is not None:
        rows += [("Admission", record.admission), ("Group Size", record.group_size), ("Num Groups", record.num_groups)]
    limit = None if record.host_memory_limit is None else f"{record.host_memory_limit / 2**30:g} GiB"
    where = {"Offload": record.offload, "Percent": record.percent, "Host Memory": limit, "Disk": record.disk or None}
    rows += [(name, value) for name, value in where.items() if value is not None]
    if record.deterministic:
        rows.append(("Deterministic", True))
    return [(name, shown(value)) for name, value in rows]


def parameter_table(record: Record) -> str:
    """The rows of `parameter_rows` under their heading."""
    return table(("Parameter", "Value"), parameter_rows(record))


def latency_table(records: Sequence[Record]) -> str:
    """The rows of `latency_rows` under their header."""
    return table(*latency_rows(records))


def latency_rows(records: Sequence[Record]) -> Rows:
    """Milliseconds of each step at each batch size. A case that failed is a row that says so; one without decode steps has none.

    Where a record has them, three more columns: the share of the hardware's bound that the average reaches, what binds, and the
    predicted time with its error.
    """
    bounded = any(r.bound is not None for r in records)
    predicted = any(r.predicted is not None for r in records)
    header = ["Step", _size_header(records), "Average", "Lowest", "Highest", "p50", "p90", "p99"]
    header += ["% of bound", "Binds"] * bounded + ["Predicted"] * predicted
    rows = []
    for step in steps_of(records):
        for place, record in enumerate(records):
            start = ["" if place else step.label, size_of(record)]
            summary: Summary | None = getattr(record, step.time)
            if summary is None:
                rows.append(start + [failed(record)] * (len(header) - 2))
                continue
            figures = (summary.mean, summary.min, summary.max, summary.p50, summary.p90, summary.p99)
            cells = [f"{figure:.2f} ms" for figure in figures]
            if bounded:
                cells += _bound_cells(record, step, summary)
            if predicted:
                cells.append(_predicted_cell(record, step, summary))
            rows.append(start + cells)
    return tuple(header), tuple(map(tuple, rows))


def throughput_table(records: Sequence[Record]) -> str:
    """The rows of `rate_rows` under their header."""
    return table(*rate_rows(records))


def rate_rows(records: Sequence[Record]) -> Rows:
    """Tokens per second: average, lowest and highest of the runs' rates. Prefill counts one first token a sequence."""
    names = {"prefill_ms": ("Prefill", "prefill_first_tok_s"), "decode_total_ms": ("Decode", "decode_tok_s")}
    names |= {"total_ms": ("Total", "total_tok_s"), "forward_ms": ("Forward", "forward_tok_s")}
    groups = [names[step.time] for step in steps_of(records) if step.time in names]
    rows = []
    for label, name in groups:
        for place, record in enumerate(records):
            rates = record.throughput.samples.get(name, ())
            figures = (getattr(record.throughput, name), min(rates), max(rates)) if rates else ()
            cells = [f"{figure:.2f} tokens/secs" for figure in figures] or [failed(record)] * 3
            rows.append(["" if place else label, size_of(record), *cells])
    return ("Step", _size_header(records), "Average", "Lowest", "Highest"), tuple(map(tuple, rows))


def comparison_table(records: Sequence[Record]) -> str:
    """How many times the tokens per second of hf native gives, at each batch size that both ran; "" with nothing to compare."""
    of = {(r.backend, size_of(r)): r for r in records}
    both = [(of["native", size], of["hf", size]) for name, size in of if name == "native" and ("hf", size) in of]
    if not both:
        return ""
    groups = {"Prefill": "prefill_first_tok_s", "Decode": "decode_tok_s", "Forward": "forward_tok_s"}
    rows = []
    for label, name in groups.items():
        pairs = [(native, hf) for native, hf in both if getattr(native.throughput, name) or getattr(hf.throughput, name)]
        for place, (native, hf) in enumerate(pairs):
            ours, theirs = getattr(native.throughput, name), getattr(hf.throughput, name)
            cells = [failed(r) if rate is None else f"{rate:.2f} tokens/secs" for r, rate in ((native, ours), (hf, theirs))]
            ratio = "-" if ours is None or theirs is None else f"{ours / theirs:.2f}"
            rows.append(["" if place else label, size_of(native), *cells, ratio])
    return "## native against hf\n\n" + table(("Step", _size_header(records), "native", "hf", "native / hf"), rows) if rows else ""


def _setting(records: Sequence[Record]) -> str:
    first = records[0]
    where = first.device_name or first.device or "unknown device"
    stacks = ", ".join(dict.fromkeys(f"{r.backend} {r.stack_version}" for r in records))
    return f"{first.model} ({first.dtype}, {first.weights} weights) on {where}: {stacks}"


def _size_header(records: Sequence[Record]) -> str:
    return "Batch Size at Context" if records[0].decode_only else "Batch Size"


def _bound_cells(record: Record, step: Step, summary: Summary) -> list[str]:
    least = None if record.bound is None else getattr(record.bound, step.bound)
    if record.bound is None or least is None:
        return ["-", "-"]
    binds = (record.bound.binds or {}).get(step.bound, "-")
    return [f"{100 * least * step.bound_steps(record) / summary.mean:.1f} %", binds]


def _predicted_cell(record: Record, step: Step, summary: Summary) -> str:
    expected = None if record.predicted is None else getattr(record.predicted, step.bound)
    if expected is None:
        return "-"
    expected *= step.bound_steps(record)
    return f"{expected:.2f} ms ({100 * (expected / summary.mean - 1):+.1f} %)"
