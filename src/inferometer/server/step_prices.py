"""What a step should take and must take at least: the inventory of its work, priced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from inferometer.errors import UserError
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import LimitsBasis, joining, limits
from inferometer.estimate.memory import is_cpu
from inferometer.estimate.power import power
from inferometer.estimate.stack import find_stack
from inferometer.hardware.calibration import load_calibrations
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.detect import detect
from inferometer.model.formats import Formats
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Share, Step
from inferometer.server.messages import Load, Ready

_KINDS = 4096
"""Kinds of steps whose prices are kept: one takes a quarter of a millisecond to work out."""

_LEADING_BITS = 6


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds. bound: the least for its work; memory_bound: the part of that in which memory binds. predicted: what is expected.

    memory, compute: what all bytes that must move, and all FLOPs, would take alone.
    """

    bound_s: float
    memory_bound_s: float
    predicted_s: float
    memory_s: float
    compute_s: float


class StepPrices:
    """Prices the steps of one model on the devices that share it."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._cached = lru_cache(_KINDS)(self._work_out)

    @property
    def basis(self) -> LimitsBasis:
        """Where the limits are from."""
        return self._deployment.limits.basis

    def price(self, load: Load) -> StepPrice:
        """Of a step that ran tokens. Numbers are rounded to six bits first, within 1.6 %, so that few kinds of steps are left."""
        return self._cached(
            _round(load.prompt_tokens),
            load.pieces,
            _round(load.piece_context_tokens),
            load.decode_tokens,
            _round(load.context_tokens),
        )

    def _work_out(self, prompt_tokens: int, pieces: int, piece_context: int, decoding: int, context: int) -> StepPrice:
        shares: list[Share] = []
        if prompt_tokens:
            # Which piece is how long is not known here; equal ones cost what others of the same sum do, but for attention among their own.
            each = max(1, prompt_tokens // max(1, pieces))
            shares.append(Share(each, piece_context // max(1, pieces), max(1, prompt_tokens // each)))
        if decoding:
            shares.append(Share(1, max(0, context // decoding - 1), decoding))
        step = Step(shares=tuple(shares))
        least, cost = self._deployment.bound(step), self._deployment.cost(step)
        return StepPrice(
            bound_s=least.ms / 1e3,
            memory_bound_s=least.ms / 1e3 * least.shares["memory"],
            predicted_s=cost.ms / 1e3,
            memory_s=least.memory_ms / 1e3,
            compute_s=least.compute_ms / 1e3,
        )


def step_prices(spec: ModelSpec, ready: Ready) -> StepPrices | None:
    """The prices for what was loaded; None for an encoder, and for a device of which too little is known."""
    if spec.encoder or ready.device_slug is None:
        return None
    device, layout = find_device(ready.device_slug), Layout(devices=ready.shards)
    try:
        measured = load_calibrations(detect().fingerprint).for_slug(device.slug)
        known = limits(device, measured, joining(device, measured, layout), sharing=layout.devices if is_cpu(device) else 1)
    except UserError:
        return None
    where = Deployment(
        spec=spec,
        device=device,
        stack=find_stack("native"),
        layout=layout,
        formats=Formats(dtype=ready.dtype, weights=ready.weights, kv_dtype=ready.kv_dtype, shards=ready.shards),
        limits=known,
        power=power(device),
    )
    return StepPrices(where)


def _round(number: int) -> int:
    surplus = max(0, number.bit_length() - _LEADING_BITS)
    return (number + (1 << surplus >> 1)) >> surplus << surplus
