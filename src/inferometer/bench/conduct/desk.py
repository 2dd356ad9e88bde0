"""What a study's process does: keeps one model loaded and takes one case through its steps, each when it is told to."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

import torch

from inferometer.bench.backends.backend import Backend
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.registry import entry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.machine.environment import telemetry
from inferometer.bench.machine.memory import bounded_host, release_caches
from inferometer.bench.machine.memory_cap import MemoryCap
from inferometer.bench.measurement.benchmark import open_backend, resolve, runner
from inferometer.bench.measurement.column import Unopened
from inferometer.bench.measurement.runner import Round, Runner
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record
from inferometer.schedule.admission import Admission

_ORDER: Final = frozenset({"admission", "group_size", "num_groups"})
# Settings of a request that a loaded model is not asked about again.
_WORKLOAD: Final = frozenset(
    {"batch_sizes", "sequence_length", "decode_length", "runs", "warmups", "forward_only", "loss", "do_sample", "temperature", "top_k"}
    | {"top_p", "typical_p", "repetition_penalty", "watermark", "decode_only", "contexts"}
)


@runtime_checkable
class Reorders(Protocol):
    """A backend whose admission can change while the model stays."""

    def reorder(self, admission: Admission | None) -> None:
        """Runs the next batches in that order."""
        ...


@runtime_checkable
class Perishes(Protocol):
    """A backend that a failed case may leave unable to run another."""

    @property
    def usable(self) -> bool:
        """Whether it still can."""
        ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model in memory, or why it is not: what it was opened with, and with which cap."""

    opening: Opening
    memory_limit: int | None
    backend: Backend | Unopened


class Desk:
    """Steps of a case: load, begin, run (once or several times), end. `release` drops the model.

    The load on a server has no steps of its own: it ends as it begins. Raises RuntimeError for a step that is not a case's next.
    """

    def __init__(self) -> None:
        self._cap = MemoryCap()
        self._loaded: _Loaded | None = None
        self._runner: Runner | None = None
        self._round: Round | None = None
        self._served: BenchRequest | None = None

    def settle(self, backend: str) -> None:
        """Imports what the backend runs on, and takes that out of the garbage collector's sight: it stays, and would be looked through
        after every case.
        """
        with suppress(Exception):  # what is wrong with it is told when it is opened
            import_module(entry(backend).opener.partition(":")[0])
        gc.collect()
        gc.freeze()

    def load(self, request: BenchRequest, memory_limit: int | None) -> None:
        """Loads the model of a request for one backend, unless it is the one that is loaded; at most `memory_limit` bytes are taken.

        Raises UserError for what cannot be done here.
        """
        self._runner = self._round = self._served = None
        request.check()
        if not entry(request.backends[0]).in_process:
            self._served = request
            return
        opening = resolve(request)
        loaded = self._take(opening, memory_limit)
        self._runner = runner(opening, {request.backends[0]: loaded.backend})

    def begin(self, case: Case) -> Record | None:
        """Makes room and checks the backend; a record if the case ended with that. Raises UserError where no server answers."""
        if self._served is not None:
            return self._served_record(self._served)
        if self._runner is None:
            raise RuntimeError("a case begins with its model loaded")
        with bounded_host(self._device):
            self._round = self._runner.begin([case])
        return self.end() if self._round.failed else None

    def run(self, *, warmups: int, runs: int) -> Record | None:
        """Runs the case, the first times unmeasured; a record if it ended with that. Memory that is only cached is given back."""
        runner, turn = self._under_way
        with bounded_host(self._device):
            for cycle in range(warmups + runs):
                runner.cycle(turn, measured=cycle >= warmups)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self.end() if turn.failed else None

    def end(self, *, shared: bool = False) -> Record:
        """The case's record; the model stays, what the case held goes. shared: whether other processes of ours use the device."""
        runner, turn = self._under_way
        (record,) = runner.end(turn)
        self._round = None
        if self._loaded is not None and not isinstance(self._loaded.backend, Unopened):
            self._loaded.backend.abandon()
        release_caches(self._device)
        return _own(record, self._device) if shared else record

    def release(self) -> None:
        """Drops the model, if there is one, and takes its cap away."""
        loaded, self._loaded = self._loaded, None
        self._runner = self._round = None
        if loaded is None:
            return
        device = loaded.opening.device
        self._cap.set(device, None)
        if not isinstance(loaded.backend, Unopened):
            loaded.backend.close()
        del loaded
        release_caches(device)

    @property
    def resident_bytes(self) -> int:
        """What this process keeps on the device between cases."""
        if self._loaded is None:
            return 0
        if self._device.type == "cuda":
            return int(torch.cuda.memory_reserved(self._device))
        return 0 if isinstance(self._loaded.backend, Unopened) else self._loaded.backend.resident_bytes

    def _served_record(self, request: BenchRequest) -> Record:
        module, _, function = entry(request.backends[0]).opener.partition(":")
        measure: Any = getattr(import_module(module), function)
        records: list[Record] = measure(request, lambda record: None)
        (record,) = records
        return record

    @property
    def _device(self) -> torch.device:
        if self._loaded is None:
            raise RuntimeError("only a loaded model has a device")
        return self._loaded.opening.device

    @property
    def _under_way(self) -> tuple[Runner, Round]:
        if self._runner is None or self._round is None:
            raise RuntimeError("a case runs and ends after it has begun")
        return self._runner, self._round

    def _take(self, opening: Opening, memory_limit: int | None) -> _Loaded:
        """The loaded model of `opening`."""
        backend: Backend | Unopened | None = self._kept(opening, memory_limit)
        if backend is None:
            self.release()
            self._cap.set(opening.device, memory_limit)
            with bounded_host(opening.device):
                backend = open_backend(entry(opening.request.backends[0]), opening)
        self._loaded = _Loaded(opening, memory_limit, backend)
        return self._loaded

    def _kept(self, opening: Opening, memory_limit: int | None) -> Backend | None:
        """The backend that is open, if it serves `opening` too."""
        loaded = self._loaded
        if loaded is None or isinstance(loaded.backend, Unopened) or loaded.memory_limit != memory_limit:
            return None
        if isinstance(loaded.backend, Perishes) and not loaded.backend.usable:
            return None
        before, now = loaded.opening.request, opening.request
        changed = {each.name for each in fields(now) if getattr(now, each.name) != getattr(before, each.name)} - _WORKLOAD
        if changed and not (changed <= _ORDER and isinstance(loaded.backend, Reorders)):
            return None
        if changed and isinstance(loaded.backend, Reorders):
            loaded.backend.reorder(now.order())
        return loaded.backend


def _own(record: Record, device: torch.device) -> Record:
    """Without what the whole device had in use, where the driver does not tell one process from another."""
    known = device.type != "cuda" or telemetry(device).read().value("gpu_process_memory_bytes") is not None
    return record if known else replace(record, peak_memory_bytes=replace(record.peak_memory_bytes, device=None))
