"""One value of one sensor, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A sensor's value in `unit`, or None with the reason. Exactly one of value and reason is there."""

    value: T | None
    unit: str
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("a reading has a value or the reason why it has none")
        if self.reason is not None and not self.reason:
            raise ValueError("the reason for an absent reading is not empty")

    def to_json(self) -> dict[str, object]:
        """`{"value", "unit", "reason"}`; a tuple becomes a list."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"value": value, "unit": self.unit, "reason": self.reason}
