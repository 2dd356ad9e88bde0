"""How often a case is run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """How often a case runs: `warmups` times unseen, then `runs` times measured, and where `energy` can be told, for seconds more.

    A measured run in which the backend made something that the next run finds (a kernel, a recorded graph) does not count and is run
    again, up to four times and half a minute a case.
    """

    runs: int
    warmups: int
    energy: bool = True

    def __post_init__(self) -> None:
        if self.runs < 1 or self.warmups < 0:
            raise ValueError(f"runs must be at least 1 and warmups at least 0, not {self.runs} and {self.warmups}")
