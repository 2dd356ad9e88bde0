"""What stands below the benchmark's tables: what their words mean, and what else is known of each case. Pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import mean
from inferometer.model.byte_size import gib
from inferometer.report.records.beyond_bound import beyond_bound, calibrate_command, is_beyond
from inferometer.report.tables.steps import FORWARD, PREFILL, TOKEN, TOTAL, WHOLE, failed, size_of, steps_of


def notes(records: Sequence[Record]) -> str:
    """What the words and units mean, whether the outputs were checked, and the evidence of every case that failed."""
    first = records[0]
    if first.forward_only:
        with_loss = " with the mean next-token loss" if first.loss else ""
        lines = [f"- Forward: one pass over the prompts{with_loss}; its tokens/secs count prompt tokens."]
    else:
        steps, lines = steps_of(records), []
        if PREFILL in steps:
            # A paged engine bounds the tokens of a forward.
            paged = any(r.pages_peak is not None for r in records)
            prefill = "the prompts, in as many forwards as they take," if paged else "one forward over the prompts"
            lines.append(f"- Prefill: {prefill} and the first token of each; its tokens/secs count those first tokens, not prompt tokens.")
        if first.decode_only:
            lines.append(
                f"- Decode (total): {first.steps} steps, the first over the tokens of context beside the batch size, in a cache "
                f"filled at random; Decode (token): one of them, total / {first.steps}."
            )
        elif TOTAL in steps:
            lines.append(f"- Decode (total): the {first.steps} steps after it; Decode (token): one of them, total / {first.steps}.")
        if WHOLE in steps:
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
    lines, parts = _shared_notes(record), [f"{name} {gib(size, digits=3)}" for name, size in record.sizes.items()]
    if record.peak_memory_bytes.allocated is not None:
        parts.append(f"peak GPU memory {gib(record.peak_memory_bytes.allocated, digits=3)}")
    if record.link_gb_s is not None:
        link = f"{record.link_gb_s:.2f} GB/s from the host"
        if record.link_bound is not None:
            link += f", {record.link_bound['share']:.1%} of the {record.link_bound['copy_gb_s']:.2f} GB/s of plain copies"
        parts.append(link)
    return [*lines, f"- Batch size {record.batch_size}: {'; '.join(parts)}."]


def _shared_notes(record: Record) -> list[str]:
    """Prefill and decode as FlexGen's timer has them, where they share sweeps: all until the last prompt has its first token, and the
    rest."""
    if record.first_tokens_ms is None or record.first_tokens is None or record.total_ms is None:
        return []
    prefill, rest = record.first_tokens_ms.mean, record.total_ms.mean - record.first_tokens_ms.mean
    rate = mean([1000 * record.batch_size * record.sequence_length / ms for ms in record.first_tokens_ms.samples])
    text = f"prefill, until the last prompt had its first token, {prefill:.2f} ms ({rate:.2f} prompt tokens/secs)"
    beside, behind = record.first_tokens - record.batch_size, record.batch_size * (record.steps + 1) - record.first_tokens
    if beside:
        text += f", with {beside} more tokens decoded beside it"
    if behind:
        parts = zip(record.total_ms.samples, record.first_tokens_ms.samples, strict=True)
        rates = [1000 * behind / (whole - part) for whole, part in parts if whole > part]
        text += f"; decode of the last {behind} tokens {rest:.2f} ms"
        text += f" ({mean(rates):.2f} tokens/secs)" if len(rates) == record.runs else ""
    return [f"- Batch size {record.batch_size}: {text}."]


def _outlook_notes(records: Sequence[Record]) -> list[str]:
    """What "% of bound" and "Predicted" mean, and on which limits they rest."""
    lines = []
    bounds = [r.bound for r in records if r.bound is not None]
    if bounds:
        lines.append(
            "- % of bound: the least time that this device needs for the work, over the average. The least time is, op by op, the longer "
            f"of that of its FLOPs and that of the bytes that must move ({bounds[0].basis} limits). Binds: which of the two it mostly is."
        )
        lines += [f"- {each}" for each in beyond_bound(filter(is_beyond, records), mark="`")]
    predictions = [r.predicted for r in records if r.predicted is not None]
    if predictions:
        lines.append("- Predicted: what the estimator expects, and how far that is from the average.")
        if not bounds and records[0].device is not None:
            lines.append(
                f"- No bound: the limits of this device are unknown until `{calibrate_command(records[0].device)}` has measured them "
                f"({predictions[0].basis})."
            )
    return lines


def _use_notes(record: Record) -> list[str]:
    """Utilisation, memory and energy of one case, as far as they are known."""
    start, parts = f"- {record.backend}, batch size {size_of(record)}: ", []
    used = record.utilisation or {}
    if used.get("mbu") is not None:
        parts.append(f"{100 * used['mbu']:.1f} % of the memory bandwidth {'' if record.forward_only else 'in decode'}".rstrip())
    if used.get("mfu") is not None:
        parts.append(f"{100 * used['mfu']:.1f} % of the FLOP rate {'' if record.forward_only else 'in prefill'}".rstrip())
    peak = record.peak_memory_bytes.allocated
    if peak is not None:
        expected = None if record.predicted is None else record.predicted.peak_memory_bytes
        beside = "" if expected is None else f" ({gib(expected).removesuffix(' GiB')} predicted)"
        parts.append(f"peak of tensors {gib(peak)}{beside}")
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


def _plain_notes(record: Record) -> list[str]:
    """Which times of a case with weights in few bits are expected to be shorter with weights as they are."""
    faster = {} if record.predicted is None else record.predicted.faster_unquantized or {}
    times = " and ".join(f"{step.label} in {faster[step.time]:.2f} ms" for step in (FORWARD, PREFILL, TOKEN) if step.time in faster)
    if not times:
        return []
    return [f"- {record.backend}, batch size {size_of(record)}: faster with {record.dtype} weights, the estimator expects: {times}."]


def _backend_notes(records: Sequence[Record]) -> list[str]:
    backend = records[0].backend
    lines = []
    prompt_rates = [(size_of(r), r.throughput.prefill_prompt_tok_s) for r in records]
    shown = ", ".join(f"{rate:.2f} at batch size {size}" for size, rate in prompt_rates if rate is not None)
    if shown:
        lines.append(f"- {backend}, prompt tokens/secs in prefill: {shown}.")
    for record in records:
        lines += _use_notes(record) + _plain_notes(record)
    checked = [r.checked for r in records if r.checked is not None and r.checked.passed]
    if checked:
        worst = max(checked, key=lambda c: c.max_error or 0.0)
        error = "" if worst.max_error is None else f": relative error {worst.max_error:.1e}, at most {worst.tolerance:g} allowed"
        lines.append(f"- {backend}, checked before it was timed: {worst.method}{error}.")
    lines += [f"- {backend}, batch size {size_of(r)}: {failed(r)}. {r.evidence}" for r in records if r.evidence is not None]
    return lines
