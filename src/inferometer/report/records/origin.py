"""Where a record was measured, as far as it decides whether two of them may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferometer.bench.records.record import Record


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine, the session on it and the revision of this product that a record is of, None where it does not say."""

    machine: str
    session: str | None
    revision: str | None

    @classmethod
    def of(cls, record: Record) -> Origin:
        """The origin of a record."""
        seen = record.environment
        device = record.device_name or record.device or "unknown device"
        parts = [device, *(seen[name] for name in ("cpu",) if seen.get(name))]
        version, commit = seen.get("inferometer"), seen.get("revision")
        revision = " ".join(str(each) for each in (version, commit) if each) or None
        session = seen.get("session")
        return cls(", ".join(dict.fromkeys(parts)), None if session is None else str(session), revision)

    def apart(self, other: Origin) -> str | None:
        """What keeps figures of the two from being compared, None if nothing does."""
        if self.machine != other.machine:
            return f"on different machines ({self.machine}; {other.machine})"
        if self.session != other.session:
            return f"in different sessions ({self.session}; {other.session})"
        if self.revision != other.revision:
            return f"at different revisions ({self.revision}; {other.revision})"
        return None


def origins_of(records: Iterable[Record]) -> tuple[Origin, ...]:
    """The origins of what was tried at all, in order; what was skipped was measured nowhere."""
    return tuple(dict.fromkeys(Origin.of(record) for record in records if record.status != "skipped"))


def mixture(records: Iterable[Record]) -> str | None:
    """What is mixed: the machines, sessions and revisions among the records, None where there is one of each.

    Of a session it says which columns it measured and when it began.
    """
    tried = [record for record in records if record.status != "skipped"]
    origins = origins_of(tried)
    kinds = {"machine": "machines", "session": "sessions", "revision": "revisions"}
    found = []
    for kind, plural in kinds.items():
        values = list(dict.fromkeys(getattr(origin, kind) for origin in origins))
        if len(values) > 1:
            told = _sessions(values, tried) if kind == "session" else [str(value) for value in values]
            found.append(f"{len(values)} {plural} ({'; '.join(told)})")
    return f"mixes {', '.join(found)}: ratios are formed only within one of each" if found else None


def _sessions(sessions: Iterable[str | None], records: Sequence[Record]) -> list[str]:
    """Each session with when it began and what it measured, the first one first."""
    found = []
    for session in sessions:
        mine = [record for record in records if Origin.of(record).session == session]
        columns = list(dict.fromkeys(record.column for record in mine if record.column is not None))
        began = min(record.started_at for record in mine)[:16].replace("T", " ")
        found.append((began, f"{session} of {began}" + (f": {', '.join(columns)}" if columns else "")))
    return [told for _, told in sorted(found)]
