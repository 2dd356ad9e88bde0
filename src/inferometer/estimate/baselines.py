"""What simpler rules say of a measured row: the figures that an estimator must beat to be worth having."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from inferometer.estimate.bound import bound
from inferometer.estimate.limits import Limits, limits
from inferometer.estimate.measured.row import MeasuredRow
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import link_between
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats, kv_bytes_per_token, weight_format
from inferometer.model.ops import Op
from inferometer.model.presets import preset
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step, decode_equal, encode, forward, prefill
from inferometer.model.work import work

GIB = 1 << 30


def peak_roofline_ms(row: MeasuredRow) -> float | None:
    """The time in which the datasheet's device can do the row's work at all; None for a quantity that is no time.

    A run is its steps one after another, and groups run one group after another, each reading the weights for itself. Layers laid
    over devices run one after another too.
    """
    if row.quantity != "time_ms" or row.mode == "serve":
        return None
    known = _limits(row)
    return sum(times * bound(_ops(row, step), known).ms for times, step in _steps(row))


def board_power(row: MeasuredRow) -> float | None:
    """The power limit of all devices over the measured tokens a second, in J/token, or that power in W; None for other rows.

    The rate is the measured one, so this baseline has no error in time.
    """
    watts = find_device(row.device).power_limit_w
    if watts is None or row.quantity not in ("j_per_token", "power_w"):
        return None
    if row.quantity == "power_w":
        return watts * row.gpus
    return None if row.tok_s is None else watts * row.gpus / row.tok_s


def weights_and_cache_gib(row: MeasuredRow) -> float | None:
    """Weights and the KV cache at its longest, on one device, in GiB; None for a quantity that is no memory."""
    if row.quantity != "peak_gib":
        return None
    spec, shards = _spec(row), row.gpus if row.parallel == "tensor" else 1
    held = resident_weight_bytes(spec, _formats(row, shards))
    if row.mode != "forward":
        held += kv_bytes_per_token(spec, _formats(row, shards)) * row.batch * (row.prompt_tokens + row.new_tokens)
    return held / GIB


def scale(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """The factor on `predicted` that leaves no mean error in its logarithm. Raises ValueError for no rows."""
    if not measured or len(measured) != len(predicted):
        raise ValueError("a factor needs as many predictions as measurements, and at least one")
    return math.exp(sum(math.log(m / p) for m, p in zip(measured, predicted, strict=True)) / len(measured))


def _steps(row: MeasuredRow) -> Iterable[tuple[int, Step]]:
    """How often each step runs. The steps of a growing context count as its middle one: costs grow evenly."""
    if row.mode == "forward":
        spec, texts = _spec(row), (row.batch, row.prompt_tokens)
        return [(1, encode(*texts, pooled=spec.pooler) if spec.encoder else forward(*texts, loss=row.loss))]
    if row.mode == "prefill":
        return [(1, prefill(row.batch, row.prompt_tokens))]
    if row.mode == "decode":
        return [(1, decode_equal(row.batch, row.mean_context))]
    together, times = (row.group_size or 1, row.groups or 1) if row.mode == "groups" else (row.batch, 1)
    later = decode_equal(together, row.mean_context)
    return [(times, prefill(together, row.prompt_tokens)), (times * (row.new_tokens - 1), later)]


def _ops(row: MeasuredRow, step: Step) -> Iterable[Op]:
    spec = _spec(row)
    if row.parallel == "tensor":
        return work(spec, step, _formats(row, row.gpus))
    whole = work(spec, step, _formats(row, 1))
    if row.parallel != "mlp-tensor":
        return whole
    # A cut by the feed-forward width alone: it need not divide the heads.
    parts = [_cut(op, row.gpus) if op.name.startswith("feed_forward_") and op.kind == "gemm" else op for op in whole]
    payload = step.tokens * spec.hidden * _formats(row, 1).item_bytes
    sent = 2 * (row.gpus - 1) * payload // row.gpus
    shape = (step.tokens, spec.hidden)
    reduced = Op(
        kind="collective", name="all_reduce", shape=shape, unit="vector", dtype=row.dtype, count=spec.layers, collective_bytes=sent
    )
    return [*parts, reduced]


def _cut(op: Op, gpus: int) -> Op:
    return replace(op, flops=op.flops // gpus, bytes_read=op.bytes_read // gpus)


def _limits(row: MeasuredRow) -> Limits:
    device = find_device(row.device)
    return limits(device, link=link_between(device, row.gpus, row.link) if row.gpus > 1 else None)


def _formats(row: MeasuredRow, shards: int) -> Formats:
    return Formats(dtype=row.dtype, weights=None if row.quantize is None else weight_format(row.quantize, row.dtype), shards=shards)


def _spec(row: MeasuredRow) -> ModelSpec:
    found = preset(row.model)
    if found is None:
        raise ValueError(f"{row.regime}: {row.id}: there is no preset {row.model}")
    return found.spec()
