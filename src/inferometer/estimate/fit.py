"""Whether a workload fits on its devices, and which setting would make it fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from inferometer.errors import UserError
from inferometer.estimate.largest import largest_batch, largest_context
from inferometer.estimate.memory import Memory, is_cpu
from inferometer.estimate.memory_of import memory_of
from inferometer.estimate.request import Request
from inferometer.estimate.workload import Workload
from inferometer.hardware.links import host_link
from inferometer.model.offload import NOWHERE_ELSE, Offload
from inferometer.model.shard import check_shards

_SMALLER_WEIGHTS = ("int8", "int4-g64")
_DEVICES = (2, 4, 8)

_Way = tuple[Request, str]
"""A request that is changed, and the flags that change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """short_by_bytes: what one device lacks, None if it fits. remedies: flags of which each would make it fit by itself, those that keep
    the batch first; none if it does or none would. offload: those of the way that needs no other device or format and is as slow as the
    link: weights on the host; None where the weights are not what is too much, or where that would not do.

    largest_batch, largest_context: the most sequences, and the longest prompts, that fit with everything else unchanged; None where
    memory sets them no end.
    """

    short_by_bytes: int | None
    remedies: tuple[str, ...] = ()
    offload: str | None = None
    largest_batch: int | None
    largest_context: int | None

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.short_by_bytes is None

    @property
    def remedy(self) -> str | None:
        """The first of the remedies."""
        return next(iter(self.remedies), None)


def fit(request: Request, needed: Memory) -> Fit:
    """Compares `needed` with the device, and searches for remedies where it is too much."""
    short = needed.device_bytes - request.device.usable_memory_bytes
    # By the memory that `needed` is of: in groups a batch takes what those take that are in flight.
    largest = _most(request)
    longest = largest_context(request.workload, _room(request), request.spec.context_limit, request.stack.sweep_tokens)
    if short <= 0:
        return Fit(short_by_bytes=None, largest_batch=largest, largest_context=longest)
    return Fit(
        short_by_bytes=short,
        remedies=_remedies(request, largest or 0),
        offload=None if largest else _offloaded(request),
        largest_batch=largest,
        largest_context=longest,
    )


def _room(request: Request) -> Callable[[Workload], bool]:
    """Whether another workload of the request would fit."""
    return lambda workload: memory_of(replace(request, workload=workload)).device_bytes <= request.device.usable_memory_bytes


def _most(request: Request) -> int | None:
    return largest_batch(request.workload, _room(request))


def _remedies(request: Request, largest: int) -> tuple[str, ...]:
    """Flags under which it fits: those that keep the batch, then the `largest` batch that fits as it is.

    Where there is neither, those under which a smaller batch fits.
    """
    found = _of_each_kind(request, _first_that_fits)
    if largest:
        found.append(f"--batch-size {largest}")
    return tuple(found or _of_each_kind(request, _largest_that_fits))


def _of_each_kind(request: Request, choose: Callable[[Iterator[_Way]], str | None]) -> list[str]:
    """Flags of a format and of more devices, or, where neither does by itself, of one with the other."""
    apart = [choose(_in_formats(request)), choose(_on_devices(request))]
    together = None if any(apart) else choose(way for changed in _in_formats(request) for way in _on_devices(*changed))
    return [flags for flags in (*apart, together) if flags is not None]


def _first_that_fits(ways: Iterator[_Way]) -> str | None:
    return next((flags for changed, flags in ways if _room(changed)(changed.workload)), None)


def _largest_that_fits(ways: Iterator[_Way]) -> str | None:
    """The way under which most of the batch fits, and how much that is; None if nothing does."""
    sizes = ((_most(changed) or 0, flags) for changed, flags in ways)
    size, flags = max(sizes, key=lambda each: each[0], default=(0, ""))
    return f"{flags} --batch-size {size}" if size else None


def _offloaded(request: Request) -> str | None:
    """The least share of the weights, in hundredths, without which the batch fits, or all of them with the batch that then does.

    None where this engine does not run it so: on several devices, another stack, a model that is only estimated.
    """
    alone = request.layout.devices == 1 and not is_cpu(request.device) and host_link(request.device) is not None
    runs = request.stack.name == "native" and request.spec.unrun is None and request.published is None
    if not alone or not runs or request.offload != NOWHERE_ELSE:
        return None

    def streaming(hundredths: int) -> Request:
        share = hundredths / 100
        return replace(request, workload=replace(request.workload, streamed=share), offload=Offload(weights=share))

    least = 1 + bisect_left(range(1, 101), True, key=lambda hundredths: _room(streaming(hundredths))(streaming(hundredths).workload))
    if least <= 100:
        return f"--offload {streaming(least).offload.name}"
    largest = _most(streaming(100))
    return f"--offload weights --batch-size {largest}" if largest else None


def _in_formats(request: Request) -> Iterator[_Way]:
    """The request with smaller weights, the nearest first."""
    kept = request.formats
    if kept.weights is not None:
        return
    if kept.dtype == "float32" and not is_cpu(request.device):
        yield replace(request, formats=replace(kept, dtype="float16")), "--dtype float16"
    if request.published is not None:
        # Widened they were asked for; in the checkpoint's own format they are smaller.
        weights = request.published.weights(request.spec, request.spec.name)
        yield replace(request, formats=replace(kept, weights=weights), stored=True), f"--quantize {request.published.named}"
        return
    for name in _SMALLER_WEIGHTS:
        weights = request.stack.weights(name, kept.dtype)
        yield replace(request, formats=replace(kept, weights=weights)), f"--quantize {name}"


def _on_devices(request: Request, so_far: str = "") -> Iterator[_Way]:
    """The request on more devices that share the model as they do, the fewest first; so_far: flags that have changed it before."""
    if request.offload != NOWHERE_ELSE:
        return  # which is for one device
    most = max((port.joins for port in request.device.ports), default=1)
    for devices in _DEVICES:
        layout = replace(request.layout, devices=devices)
        shards = devices if layout.parallel == "tensor" else 1
        if not request.layout.devices < devices <= most:
            continue
        try:
            check_shards(request.spec, shards)
            layout.check(request.spec)
        except UserError:
            continue
        flags = [so_far] if so_far else []
        if shards != request.formats.shards:
            flags.append(f"--tensor-parallel {shards}")
        if devices > request.gpus:
            flags.append(f"--gpus {devices}")
        yield replace(request, formats=replace(request.formats, shards=shards), layout=layout), " ".join(flags)
