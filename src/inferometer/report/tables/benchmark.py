"""The benchmark's Markdown: what was asked, latency, throughput, and how backends compare. Pure functions of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary
from inferometer.report.markup.markdown import table
from inferometer.report.tables.serving import served, serving_document
from inferometer.report.tables.words import shown

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""A header, and rows of as many cells."""

_FAILED = {"oom": "OOM", "error": "error", "timeout": "timeout", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class _Step:
    """A group of rows: `time` names the record's latency, `bound` what bounds it, if anything does, and `bound_steps(record)` how many
    of the bounded unit it spans.
    """

    label: str
    time: str
    bound: str | None
    bound_steps: Callable[[Record], int] = lambda record: 1


_PREFILL = _Step("Prefill", "prefill_ms", "prefill_ms")
_TOKEN = _Step("Decode (token)", "decode_token_ms", "decode_token_ms")
_TOTAL = _Step("Decode (total)", "decode_total_ms", "decode_token_ms", lambda record: record.steps)
_WHOLE = _Step("Total", "total_ms", None)
_FORWARD = _Step("Forward", "forward_ms", "forward_ms")


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
    for step in _steps(records):
        for place, record in enumerate(records):
            start = ["" if place else step.label, _size(record)]
            summary: Summary | None = getattr(record, step.time)
            if summary is None:
                rows.append(start + [_failed(record)] * (len(header) - 2))
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
    groups = [names[step.time] for step in _steps(records) if step.time in names]
    rows = []
    for label, name in groups:
        for place, record in enumerate(records):
            rates = record.throughput.samples.get(name, ())
            figures = (getattr(record.throughput, name), min(rates), max(rates)) if rates else ()
            cells = [f"{figure:.2f} tokens/secs" for figure in figures] or [_failed(record)] * 3
            rows.append(["" if place else label, _size(record), *cells])
    return ("Step", _size_header(records), "Average", "Lowest", "Highest"), tuple(map(tuple, rows))


def comparison_table(records: Sequence[Record]) -> str:
    """How many times the tokens per second of hf native gives, at each batch size that both ran; "" with nothing to compare."""
    of = {(r.backend, _size(r)): r for r in records}
    both = [(of["native", size], of["hf", size]) for name, size in of if name == "native" and ("hf", size) in of]
    if not both:
        return ""
    groups = {"Prefill": "prefill_first_tok_s", "Decode": "decode_tok_s", "Forward": "forward_tok_s"}
    rows = []
    for label, name in groups.items():
        pairs = [(native, hf) for native, hf in both if getattr(native.throughput, name) or getattr(hf.throughput, name)]
        for place, (native, hf) in enumerate(pairs):
            ours, theirs = getattr(native.throughput, name), getattr(hf.throughput, name)
            cells = [_failed(r) if rate is None else f"{rate:.2f} tokens/secs" for r, rate in ((native, ours), (hf, theirs))]
            ratio = "-" if ours is None or theirs is None else f"{ours / theirs:.2f}"
            rows.append(["" if place else label, _size(native), *cells, ratio])
    return "## native against hf\n\n" + table(("Step", _size_header(records), "native", "hf", "native / hf"), rows) if rows else ""


def notes(records: Sequence[Record]) -> str:
    """What the words and units mean, whether the outputs were checked, and the evidence of every case that failed."""
    first = records[0]
    if first.forward_only:
        with_loss = " with the mean next-token loss" if first.loss else ""
        lines = [f"- Forward: one pass over the prompts{with_loss}; its tokens/secs count prompt tokens."]
    else:
        steps, lines = _steps(records), []
        if _PREFILL in steps:
            # A paged engine bounds the tokens of a forward.
            paged = any(r.pages_peak is not None for r in records)
            prefill = "the prompts, in as many forwards as they take," if paged else "one forward over the prompts"
            lines.append(f"- Prefill: {prefill} and the first token of each; its tokens/secs count those first tokens, not prompt tokens.")
        if first.decode_only:
            lines.append(
                f"- Decode (total): {first.steps} steps, the first over the tokens of context beside the batch size, in a cache "
                f"filled at random; Decode (token): one of them, total / {first.steps}."
            )
        elif _TOTAL in steps:
            lines.append(f"- Decode (total): the {first.steps} steps after it; Decode (token): one of them, total / {first.steps}.")
        if _WHOLE in steps:
            lines.append("- Total: from the first prompt to the last token; its tokens/secs count generated tokens.")
        if any(r.status == "ok" and r.prefill_ms is None and not r.decode_only for r in records):
            lines.append("- Where there is no Prefill and no Decode, some rows decoded while others were prefilled.")
    lines.append("- Averages of tokens/secs are means of the runs' rates. Percentiles are of the sorted runs, without interpolation.")
    lines += [line for record in records for line in _size_notes(record)]
    lines += _outlook_notes(records)
    for backend in dict.fromkeys(r.backend for r in records):
        lines += _backend_notes([r for r in records if r.backend == backend])
    return "\n".join(lines)


def _size_notes(record: Record) -> list[str]:
    """FlexGen's figures of a case of groups or with anything elsewhere: how large it is, what it took, and what came over the link."""
    if record.status != "ok" or record.sizes is None or not (record.admission or record.offload or record.percent):
        return []
    parts = [f"{name} {size / 2**30:.3f} GiB" for name, size in record.sizes.items()]
    if record.peak_memory_bytes.allocated is not None:
        parts.append(f"peak GPU memory {record.peak_memory_bytes.allocated / 2**30:.3f} GiB")
    if record.link_gb_s is not None:
        link = f"{record.link_gb_s:.2f} GB/s from the host"
        if record.link_bound is not None:
            link += f", {record.link_bound['share']:.1%} of the {record.link_bound['copy_gb_s']:.2f} GB/s of plain copies"
        parts.append(link)
    return [f"- Batch size {record.batch_size}: {'; '.join(parts)}."]


def _outlook_notes(records: Sequence[Record]) -> list[str]:
    """What "% of bound" and "Predicted" mean, and on which limits they rest."""
    lines = []
    bounds = [r.bound for r in records if r.bound is not None]
    if bounds:
        lines.append(
            "- % of bound: the least time that this device needs for the work, over the average. The least time is, op by op, the longer "
            f"of that of its FLOPs and that of the bytes that must move ({bounds[0].basis} limits). Binds: which of the two it mostly is."
        )
    predictions = [r.predicted for r in records if r.predicted is not None]
    if predictions:
        lines.append("- Predicted: what the estimator expects, and how far that is from the average.")
        if not bounds and records[0].device is not None:
            calibrate = f"inferometer devices --calibrate --device {'cpu' if records[0].device == 'cpu' else 'cuda'}"
            lines.append(
                f"- No bound: the limits of this device are unknown until `{calibrate}` has measured them ({predictions[0].basis})."
            )
    return lines


def _use_notes(record: Record) -> list[str]:
    """Utilisation, memory and energy of one case, as far as they are known."""
    start, parts = f"- {record.backend}, batch size {_size(record)}: ", []
    used = record.utilisation or {}
    if used.get("mbu") is not None:
        parts.append(f"{100 * used['mbu']:.1f} % of the memory bandwidth {'' if record.forward_only else 'in decode'}".rstrip())
    if used.get("mfu") is not None:
        parts.append(f"{100 * used['mfu']:.1f} % of the FLOP rate {'' if record.forward_only else 'in prefill'}".rstrip())
    peak = record.peak_memory_bytes.allocated
    if peak is not None:
        expected = None if record.predicted is None else record.predicted.peak_memory_bytes
        beside = "" if expected is None else f" ({expected / 2**30:.2f} predicted)"
        parts.append(f"peak of tensors {peak / 2**30:.2f} GiB{beside}")
    if record.pages_peak is not None:
        parts.append(f"peak of pages {record.pages_peak} (of {record.page_size} tokens)")
    known = record.launches or {}
    if known.get("measured", 0) < known.get("maps", 0):
        parts.append(f"launches measured for {known['measured']} of the {known['maps']} sizes of linear maps, the table's for the others")
    joules = (record.energy or {}).get("j_per_token")
    if joules is not None:
        expected_j = None if record.predicted is None else record.predicted.j_per_token
        parts.append(f"{joules:.3g} J/token" + ("" if expected_j is None else f" ({expected_j:.3g} predicted)"))
    return [start + "; ".join(parts) + "."] if parts else []


def _backend_notes(records: Sequence[Record]) -> list[str]:
    backend = records[0].backend
    lines = []
    prompt_rates = [(_size(r), r.throughput.prefill_prompt_tok_s) for r in records]
    shown = ", ".join(f"{rate:.2f} at batch size {size}" for size, rate in prompt_rates if rate is not None)
    if shown:
        lines.append(f"- {backend}, prompt tokens/secs in prefill: {shown}.")
    for record in records:
        lines += _use_notes(record)
    checked = [r.checked for r in records if r.checked is not None and r.checked.passed]
    if checked:
        worst = max(checked, key=lambda c: c.max_error or 0.0)
        error = "" if worst.max_error is None else f": relative error {worst.max_error:.1e}, at most {worst.tolerance:g} allowed"
        lines.append(f"- {backend}, checked before it was timed: {worst.method}{error}.")
    lines += [f"- {backend}, batch size {_size(r)}: {_failed(r)}. {r.evidence}" for r in records if r.evidence is not None]
    return lines


def _setting(records: Sequence[Record]) -> str:
    first = records[0]
    where = first.device_name or first.device or "unknown device"
    stacks = ", ".join(dict.fromkeys(f"{r.backend} {r.stack_version}" for r in records))
    return f"{first.model} ({first.dtype}, {first.weights} weights) on {where}: {stacks}"


def _steps(records: Sequence[Record]) -> tuple[_Step, ...]:
    first = records[0]
    if first.forward_only:
        return (_FORWARD,)
    if first.decode_only:
        return (_TOKEN, _TOTAL)
    phases = (_PREFILL, _TOKEN, _TOTAL) if first.steps else (_PREFILL,)
    if first.admission is None:
        return phases
    return (*phases, _WHOLE) if any(r.prefill_ms is not None for r in records) else (_WHOLE,)


def _size_header(records: Sequence[Record]) -> str:
    return "Batch Size at Context" if records[0].decode_only else "Batch Size"


def _size(record: Record) -> str:
    return f"{record.batch_size} at {record.sequence_length}" if record.decode_only else str(record.batch_size)


def _failed(record: Record) -> str:
    return _FAILED.get(record.status, "-")


def _bound_cells(record: Record, step: _Step, summary: Summary) -> list[str]:
    least = None if record.bound is None or step.bound is None else getattr(record.bound, step.bound)
    if record.bound is None or step.bound is None or least is None:
        return ["-", "-"]
    binds = (record.bound.binds or {}).get(step.bound, "-")
    return [f"{100 * least * step.bound_steps(record) / summary.mean:.1f} %", binds]


def _predicted_cell(record: Record, step: _Step, summary: Summary) -> str:
    expected = None if record.predicted is None or step.bound is None else getattr(record.predicted, step.bound)
    if expected is None:
        return "-"
    expected *= step.bound_steps(record)
    return f"{expected:.2f} ms ({100 * (expected / summary.mean - 1):+.1f} %)"
