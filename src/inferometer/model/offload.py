"""What is asked to live elsewhere than on the device: `--offload`, or FlexGen's six numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from inferometer.errors import UserError
from inferometer.model.byte_size import gib
from inferometer.model.placement import SLOTS, Placement, share

_FORM = "weights, weights:FRACTION, pages, or weights and pages with a comma between"


@dataclass(frozen=True, slots=True)
class Offload:
    """weights: share of the layers' bytes that is streamed. disk: share that lies on the disk; None for what the host has no room for.
    pages: share of the pages whose home is the host's memory.
    """

    weights: float = 0.0
    disk: float | None = None
    pages: float = 0.0

    @property
    def name(self) -> str | None:
        """As `--offload` calls it; None where nothing is elsewhere."""
        parts = []
        if self.weights:
            parts.append("weights" if self.weights == 1 else f"weights:{self.weights:g}")
        if self.pages:
            parts.append("pages")
        return ",".join(parts) or None

    def place(self, layer_bytes: Sequence[int], host_room_bytes: int | None = None, *, disk: bool = False, slots: int = SLOTS) -> Placement:
        """Where the layers' bytes lie.

        host_room_bytes: what the host's memory has room for, None for all. disk: whether there is one for the rest.
        Raises UserError where there is neither room nor disk.
        """
        total = sum(layer_bytes)
        streamed = share(total, self.weights)
        wanted = min(streamed, share(total, self.disk or 0.0))
        if host_room_bytes is not None and streamed - wanted > host_room_bytes:
            short = f"{gib(streamed - wanted)} of weights in the host's memory, which has room for {gib(max(0, host_room_bytes))}"
            if self.disk is not None:
                raise UserError(f"--percent puts {short}; lower the second number, or raise --host-memory")
            if not disk:
                raise UserError(f"--offload puts {short}; raise --host-memory, give a folder with --disk DIR, or stream a smaller fraction")
            wanted = streamed - max(0, host_room_bytes)
        if wanted and not disk:
            raise UserError("--percent leaves weights to the disk; give a folder with --disk DIR, or numbers that make 100")
        return Placement.of(layer_bytes, streamed_bytes=streamed, disk_bytes=wanted, slots=slots)


NOWHERE_ELSE: Final = Offload()
"""All on the device."""


def read_offload(offload: str | None, percent: str | Sequence[int] | None = None) -> Offload:
    """The offloading that `--offload` or `--percent` asks for. Raises UserError, one line, for what makes no sense."""
    if percent is None:
        return NOWHERE_ELSE if offload is None else _named(offload)
    if offload is not None:
        raise UserError("--percent says where everything lies; leave out --offload")
    return _six(percent)


def _named(offload: str) -> Offload:
    weights = pages = 0.0
    parts = [part.strip() for part in offload.split(",")] if isinstance(offload, str) else []
    kinds = [part.partition(":")[0] for part in parts]
    if not kinds or len(set(kinds)) < len(kinds):
        raise UserError(f"--offload {offload}: {_FORM}")
    for part in parts:
        kind, colon, number = part.partition(":")
        if kind == "weights":
            weights = _fraction(number, offload) if colon else 1.0
        elif part == "pages":
            pages = 1.0
        else:
            raise UserError(f"--offload {offload}: {_FORM}")
    return Offload(weights=weights, pages=pages)


def _fraction(text: str, offload: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise UserError(f"--offload {offload}: the fraction of the weights is a number from 0 to 1")
    return value


def _six(percent: str | Sequence[int]) -> Offload:
    """FlexGen's W_gpu W_cpu C_gpu C_cpu A_gpu A_cpu: weights, cache and activations, in percent; the rest is the disk's."""
    words = percent.replace(",", " ").split() if isinstance(percent, str) else list(percent) if isinstance(percent, Iterable) else [percent]
    shown = " ".join(map(str, words))
    try:
        numbers = [int(word) for word in words]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 6 or any(str(number) != str(word) for number, word in zip(numbers, words, strict=True)):
        raise UserError(f"--percent {shown}: six whole numbers, W_GPU W_CPU C_GPU C_CPU A_GPU A_CPU")
    weights_gpu, weights_cpu, cache_gpu, cache_cpu, states_gpu, states_cpu = numbers
    places = ("weights", weights_gpu, weights_cpu), ("the cache", cache_gpu, cache_cpu), ("activations", states_gpu, states_cpu)
    for what, gpu, cpu in places:
        if min(gpu, cpu) < 0 or gpu + cpu > 100:
            raise UserError(f"--percent {shown}: {gpu} and {cpu} of {what} must be 0 or more and at most 100 together")
    if cache_gpu + cache_cpu < 100:
        raise UserError(f"--percent {shown}: the cache is never on the disk; the third and fourth number must make 100")
    if (states_gpu, states_cpu) not in ((100, 0), (0, 100), (0, 0)):
        raise UserError(f"--percent {shown}: activations lie in one place; end with 100 0 (they stay on the GPU in any case)")
    return Offload(
        weights=float(Fraction(100 - weights_gpu, 100)),
        disk=float(Fraction(100 - weights_gpu - weights_cpu, 100)),
        pages=float(Fraction(cache_cpu, 100)),
    )
