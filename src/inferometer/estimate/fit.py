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
_DEVICES = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """short_by_bytes: what one device lacks, None if it fits. remedy: the flags that would make it fit, None if it does or none would.
    offload: those of the way that needs no other device or format and is as slow as the link: weights on the host; None where the
    weights are not what is too much, or where that would not do.

    largest_batch, largest_context: the most sequences, and the longest prompts, that fit with everything else unchanged; None where
    memory sets them no end.
    """

    short_by_bytes: int | None
    remedy: str | None
    offload: str | None = None
    largest_batch: int | None
    largest_context: int | None

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.short_by_bytes is None


def fit(request: Request, needed: Memory) -> Fit:
    """Compares `needed` with the device, and searches for a remedy where it is too much."""
    short = needed.device_bytes - request.device.usable_memory_bytes
    # By the memory that `needed` is of: in groups a batch takes what those take that are in flight.
    largest = largest_batch(request.workload, _room(request))
    longest = largest_context(request.workload, _room(request), request.spec.context_limit, request.stack.sweep_tokens)
    if short <= 0:
        return Fit(short_by_bytes=None, remedy=None, largest_batch=largest, largest_context=longest)
    remedy = f"--batch-size {largest}" if largest else next(_remedies(request), None)
    elsewhere = None if largest else _offloaded(request)
    return Fit(short_by_bytes=short, remedy=remedy, offload=elsewhere, largest_batch=largest, largest_context=longest)


def _room(request: Request) -> Callable[[Workload], bool]:
    """Whether another workload of the request would fit."""
    return lambda workload: memory_of(replace(request, workload=workload)).device_bytes <= request.device.usable_memory_bytes


def _remedies(request: Request) -> Iterator[str]:
    """Flags under which at least one sequence fits, least intrusive first."""
    smaller = _SMALLER_WEIGHTS if request.formats.weights is None else ()
    if request.formats.dtype == "float32" and request.formats.weights is None and not is_cpu(request.device):
        halved = replace(request, formats=replace(request.formats, dtype="float16"))
        found = _flags(halved, None, request.layout.devices)
        if found is not None:
            yield f"--dtype float16 {found}".rstrip()
    for name in smaller:
        found = _flags(request, name, request.layout.devices)
        if found is not None:
            yield found
    if request.offload.weights or request.offload.pages:
        return  # which are for one device
    for name in (None, *smaller):
        for devices in _DEVICES:
            if request.layout.devices < devices <= _most_devices(request):
                found = _flags(request, name, devices)
                if found is not None:
                    yield found


def _offloaded(request: Request) -> str | None:
    """The least share of the weights, in hundredths, without which the batch fits, or all of them with the batch that then does.

    None where this engine does not run it so: on several devices, another stack, a model that is only estimated.
    """
    alone = request.layout.devices == 1 and not is_cpu(request.device) and host_link(request.device) is not None
    if not alone or request.stack.name != "native" or request.spec.unrun is not None or request.offload != NOWHERE_ELSE:
        return None

    def streaming(hundredths: int) -> Request:
        share = hundredths / 100
        return replace(request, workload=replace(request.workload, streamed=share), offload=Offload(weights=share))

    least = 1 + bisect_left(range(1, 101), True, key=lambda hundredths: _room(streaming(hundredths))(streaming(hundredths).workload))
    if least <= 100:
        return f"--offload {streaming(least).offload.name}"
    largest = largest_batch(streaming(100).workload, _room(streaming(100)))
    return f"--offload weights --batch-size {largest}" if largest else None


def _flags(request: Request, quantize: str | None, devices: int) -> str | None:
    """The flags of a change of format or of devices, with a smaller batch if it takes one; None where that does not fit either."""
    layout = replace(request.layout, devices=devices)
    shards = devices if layout.parallel == "tensor" else 1
    try:
        check_shards(request.spec, shards)
        layout.check(request.spec)
    except UserError:
        return None
    kept = request.formats
    weights = kept.weights if quantize is None else request.stack.weights(quantize, kept.dtype)
    changed = replace(request, formats=replace(kept, weights=weights, shards=shards), layout=layout)
    largest = largest_batch(request.workload, _room(changed))
    if largest == 0:
        return None
    flags = [] if quantize is None else [f"--quantize {quantize}"]
    if shards != kept.shards:
        flags.append(f"--tensor-parallel {shards}")
    if devices > request.gpus:
        flags.append(f"--gpus {devices}")
    if largest is not None and largest < request.workload.batch:
        flags.append(f"--batch-size {largest}")
    return " ".join(flags)


def _most_devices(request: Request) -> int:
    return max((port.joins for port in request.device.ports), default=1)
