"""Room for the pages of a batch of the native backend, beside the model and the largest sweep that there may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from inferometer.bench.records.failures import CacheTooSmallError
from inferometer.engine.llm import LLM
from inferometer.engine.page_room import PageRoom
from inferometer.engine.sizes import PAGE_SIZE, SEATS
from inferometer.errors import UserError
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.model.byte_size import gib
from inferometer.nn.cache import PagedCache

# What a process's own libraries may take or give back between two cases.
_SAME_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class _Measured:
    """Pages that there was room for beside sweeps of so many tokens when so much memory was free."""

    free_bytes: int
    sweep_tokens: int
    pages: int


class NativeRoom:
    """Measures the room on the device of a loaded model, once for as long as others leave the device as it is."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._known: dict[int, _Measured] = {}

    def require(self, rows: int, least: int, tokens: int, needed: int, wanted: int, *, sweep_tokens: int) -> PageRoom:
        """Pages for a batch of `rows` beside sweeps of `sweep_tokens`, no more than wanted.

        Raises CacheTooSmallError if `needed`, for the `tokens` of each of `least` rows, are more than there is room for.
        """
        room = PageRoom(0, 0)
        # Room beside sweeps of few rows is measured once; only what fits there is worth the measurement with all of its rows.
        for seats in sorted({SEATS, max(SEATS, rows)}):
            most = max(sweep_tokens, seats)
            try:
                room = self._llm.page_room(seats=seats, sweep_tokens=most, wanted=wanted, device=self._on_device(seats, most))
            except UserError as error:
                raise CacheTooSmallError(f"pages of KV cache: {needed} needed, 0 available; {error}") from error
            if needed > room.pages:
                page = PagedCache.page_bytes(self._llm.model.local, self._llm.kv_dtype, PAGE_SIZE)
                raise CacheTooSmallError(
                    f"{least} x {tokens} tokens together need {needed} pages of KV cache ({gib(needed * page)}), "
                    f"{room.pages} ({gib(room.pages * page)}) are available; use a smaller batch or length, or raise --gpu-memory"
                )
        return room

    def _on_device(self, seats: int, sweep_tokens: int) -> int:
        """Pages beside sweeps of so many rows."""
        device, known = self._llm.device, self._known.get(seats)
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_bytes()
        if known is None or known.sweep_tokens != sweep_tokens or abs(free - known.free_bytes) > _SAME_BYTES:
            known = _Measured(free, sweep_tokens, self._llm.room(seats=seats, sweep_tokens=sweep_tokens))
            self._known[seats] = known
        return known.pages
