"""What a loaded model leaves of the device's and the host's memory, in pages of KV cache."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from inferometer.engine.loaded_part import DeviceLimits
from inferometer.engine.memory import activation_bytes, page_budget
from inferometer.engine.page_room import UNASKED_BYTES, PageRoom, share_pages
from inferometer.engine.residency.disk_reader import least_bytes
from inferometer.engine.residency.share import BesideWeights
from inferometer.engine.residency.storage import Storage, more_streamed, resident_beside_layers
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sequence_limit import sequence_limit
from inferometer.engine.sizes import PAGE_SIZE, SEATS
from inferometer.errors import PointlessWarning, UserError
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.model.byte_size import gib
from inferometer.model.placement import SLOTS
from inferometer.nn.cache import PagedCache
from inferometer.nn.tiered_cache import slot_pages_for, slots_bytes
from inferometer.nn.transformer import Transformer
from inferometer.schedule.request import Request


@dataclass(frozen=True, slots=True)
class RoomBeside:
    """kv_dtype: of the pages. storage: what is asked to live elsewhere."""

    model: Transformer
    kv_dtype: torch.dtype
    storage: Storage
    limits: DeviceLimits

    def sweep_tokens(self, most: int, seats: int) -> int:
        """Tokens of a sweep, no more than `most`: so many that what passes through the layers takes a quarter of what --gpu-memory leaves
        beside the weights, but enough for every seat to decode."""
        left = self._left_by_limit
        if left is None:
            return most
        return max(seats, min(most, max(0, left) // 4 // activation_bytes(self.model.local, self.model.dtype, 1)))

    def device_pages(self, seats: int, sweep_tokens: int) -> int:
        """Pages that the device has memory for now, beside sweeps of so many sequences and tokens. Raises UserError for none."""
        return page_budget(
            self.model,
            page_size=PAGE_SIZE,
            seats=seats,
            sweep_tokens=sweep_tokens,
            fraction=self.limits.fraction,
            limit_bytes=self._limit_bytes(sweep_tokens),
            kv_dtype=self.kv_dtype,
            relief=self._streaming,
        )

    def _streaming(self, left_bytes: int) -> str | None:
        """The advice to stream more of the weights, None where that would not help. left_bytes: beside weights and what passes through."""
        residency, offload, spec = self.model.residency, self.storage.offload, self.model.spec
        on_host = self.model.device.type == "cpu"
        if offload.weights == 1 or self.model.collective.size > 1 or (on_host and self._left_by_limit is None):
            return None  # what is streamed on a CPU lies in the same memory, unless a limit stands for another device's
        if not isinstance(residency, StreamedLayers):
            return f"stream weights (--offload {replace(offload, weights=1.0).name})" if spec.layers > SLOTS else None
        placement = residency.placement
        layers = [layer.bytes for layer in placement.layers]
        left = left_bytes if self._left_by_limit is None else self._left_by_limit
        share = BesideWeights.of(spec, self.model.dtype, offload, on_host=on_host).share(layers, left + placement.device_bytes)
        if share is None:
            return None
        # Where what is measured on a GPU is more than what was counted, all may help.
        return more_streamed(offload, share if share > offload.weights else 1.0)

    def _limit_bytes(self, sweep_tokens: int) -> int | None:
        """What `page_budget` is to keep to."""
        if self.limits.gpu_memory is None:
            return None
        if self.model.device.type == "cuda" or self._left_by_limit is None:
            return int(self.limits.gpu_memory * 2**30)
        return self._left_by_limit - activation_bytes(self.model.spec, self.model.dtype, sweep_tokens)

    @property
    def _left_by_limit(self) -> int | None:
        """Bytes that --gpu-memory leaves beside the weights; None where it is not given, or caps the pages alone."""
        if self.limits.gpu_memory is None:
            return None
        limit, residency = int(self.limits.gpu_memory * 2**30), self.model.residency
        if self.model.device.type == "cuda":
            return limit - torch.cuda.memory_allocated(self.model.device)
        if not isinstance(residency, StreamedLayers):
            return None
        # The CPU stands for a device with memory of its own: what is always there counts.
        beside = resident_beside_layers(self.model.spec, self.model.dtype, self.model.layouts)
        return limit - beside - residency.placement.device_bytes

    def shared(self, device: int, *, seats: int, wanted: int | None = None) -> PageRoom:
        """Pages that both sides have room for, `device` of them there, for so many sequences; no more than `wanted`.

        Warns where all wanted would fit on the device, though some are to be elsewhere. Raises UserError if there is room for none.
        """
        share = self.storage.offload.pages
        if not share:
            return PageRoom(*[device if wanted is None else min(device, wanted)] * 2)
        spec, dtype = self.model.local, self.kv_dtype
        page = PagedCache.page_bytes(spec, dtype, PAGE_SIZE)
        most_each = self._most_pages
        most = seats * most_each if wanted is None else wanted
        elsewhere = min(most, self._host_room_bytes // page)
        longest = min(most_each, elsewhere)
        slot = slot_pages_for(spec, dtype, PAGE_SIZE, longest=longest, elsewhere=elsewhere)
        # Smaller where memory is short: a copy is then sooner over, and the longest sequence has room all the same.
        slots = device * page if share == 1 else device * page // 2
        slot = min(slot, max(longest, slots // slots_bytes(spec, dtype, PAGE_SIZE, 1)))
        beside = -(-slots_bytes(spec, dtype, PAGE_SIZE, slot) // page)
        if device < beside:
            short = f"{gib(beside * page)} through which pages come, and {gib(device * page)}"
            asked = "--offload pages" if self.storage.offload.disk is None else "--percent"
            raise UserError(f"{asked} needs {short} are free on the device; {self._relief(fit=most <= device)}")
        if most <= device:
            message = f"all pages of the KV cache fit on the device: bringing them in is pointless and slow; {self._without}"
            warnings.warn(message, PointlessWarning, stacklevel=3)
        room = share_pages(share, device - beside, elsewhere, most)
        return replace(room, slot_pages=min(slot, max(1, room.elsewhere)))

    def say_if_pointless(self, requests: Sequence[Request], device: int) -> None:
        """Warns where all pages of these requests, as many as run together, would fit on the device, though they are to be elsewhere.

        device: pages that it has room for. Where all that could ever be asked for fits, `shared` has said so.
        """
        if not self.storage.offload.pages or SEATS * self._most_pages <= device:
            return
        held = sorted((-(-(request.tokens - 1) // PAGE_SIZE) for request in requests), reverse=True)
        if sum(held[:SEATS]) <= device:
            message = (
                f"all pages of {'this prompt' if len(requests) == 1 else f'these {len(requests)} prompts'} fit on the device: bringing "
                f"them in is pointless and slow; {self._without}"
            )
            warnings.warn(message, PointlessWarning, stacklevel=4)

    @property
    def _most_pages(self) -> int:
        """Of one sequence."""
        return -(-sequence_limit(self.model.local) // PAGE_SIZE)

    @property
    def _without(self) -> str:
        """What leaves all pages on the device."""
        return "leave out --offload pages" if self.storage.offload.disk is None else "make the third of --percent's numbers 100"

    def _relief(self, *, fit: bool) -> str:
        """What leaves the device more memory. fit: whether all pages would have room there."""
        if fit:
            return f"all pages fit there: {self._without}"
        streamed = self.storage.offload.weights
        if streamed == 1:
            return "raise --gpu-memory"
        if self.storage.offload.disk is not None:
            return "raise --gpu-memory, or lower the first of --percent's numbers"
        return f"raise --gpu-memory, or stream {'more of the weights' if streamed else 'the weights too (--offload weights,pages)'}"

    @property
    def _host_room_bytes(self) -> int:
        """What pages may take of the host's memory."""
        free = int(free_host_bytes() * self.limits.fraction)
        if self.storage.host_bytes is None:
            return min(free, UNASKED_BYTES)
        residency = self.model.residency
        held = 0
        if isinstance(residency, StreamedLayers):
            layers = residency.placement.layers
            held = residency.placement.host_bytes + max(least_bytes(), *(layer.bytes for layer in layers))  # as `Storage.place` keeps
        return max(0, min(free, self.storage.host_bytes - held))
