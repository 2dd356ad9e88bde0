"""What the estimator says of records now: memory by use, work by phase and the roof above it. Records have no field for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from inferometer.bench.prediction.hindsight import request_of
from inferometer.bench.records.record import Record
from inferometer.errors import UserError
from inferometer.estimate.estimate import deployment, memory_of, phase_steps
from inferometer.estimate.limits import Limits
from inferometer.estimate.memory import Memory
from inferometer.hardware.host import Host, read_host
from inferometer.model.ops import compulsory_bytes

Phase = Literal["forward_ms", "prefill_ms", "decode_token_ms"]
TIMED: Final[tuple[Phase, ...]] = ("decode_token_ms", "prefill_ms", "forward_ms")


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and compulsory bytes of one step of a phase, on one device."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes


@dataclass(frozen=True, slots=True)
class Outlook:
    """One case: what each device needs, what it has and can, and the work of each phase."""

    memory: Memory
    usable_memory_bytes: int
    limits: Limits
    work: Mapping[Phase, Work]

    @classmethod
    def of(cls, record: Record) -> Outlook:
        """Counted, not priced: that is a hundred times the work. Raises UserError for a case that the estimator does not take."""
        request = request_of(record)
        where = deployment(request)
        work: dict[Phase, Work] = {}
        for phase, steps in phase_steps(request, where).items():
            ops = where.layout.ops(where.spec, steps[0], where.formats)
            found = Work(sum(op.count * op.flops for op in ops), compulsory_bytes(ops))
            if found.flops and found.bytes:
                work[phase] = found
        return cls(memory_of(request), request.device.usable_memory_bytes, where.limits, work)


@dataclass(frozen=True, slots=True)
class Outlooks:
    """Outlooks by the record's identity (`id`), and why others have none: {reason: how many}."""

    reasons: Mapping[str, int]
    _found: Mapping[int, Outlook]
    _host: Host

    @classmethod
    def of(cls, records: Sequence[Record]) -> Outlooks:
        """One of every record that can have one, failed cases too: they show what did not fit."""
        found: dict[int, Outlook] = {}
        reasons: dict[str, int] = {}
        for record in records:
            try:
                found[id(record)] = Outlook.of(record)
            except (UserError, ValueError) as error:
                reasons[str(error)] = reasons.get(str(error), 0) + 1
        return cls(reasons, found, read_host())

    def get(self, record: Record) -> Outlook | None:
        """That of one of the records."""
        return self._found.get(id(record))

    def why(self) -> str:
        """The reasons, as the end of a sentence."""
        return "; ".join(f"{reason} ({count})" for reason, count in list(self.reasons.items())[:3]) or "no record tells"

    def capacity_bytes(self, record: Record) -> int | None:
        """What the device has, or what the case was allowed to take of it. None for a processor elsewhere, whose memory is unknown."""
        found = self.get(record)
        if found is None or not self.knows(record):
            return record.memory_limit
        return min(found.usable_memory_bytes, record.memory_limit or found.usable_memory_bytes)

    def work(self, record: Record, phase: Phase) -> Work | None:
        """What a step of a phase computes and moves, where that is known."""
        found = self.get(record)
        return None if found is None else found.work.get(phase)

    def knows(self, record: Record) -> bool:
        """Whether the limits of the record's device are known here: of every card, but of no processor other than this machine's."""
        if record.device != "cpu":
            return self.get(record) is not None
        return (record.environment.get("cpu"), record.environment.get("cores")) == (self._host.model, self._host.cores)
