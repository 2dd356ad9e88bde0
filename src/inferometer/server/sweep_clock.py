"""Which sweep a step's time was spent on."""

from __future__ import annotations

from inferometer.server.messages import Load


class SweepClock:
    """Pairs loads with times. `behind`: as on a GPU, a step launches its sweep and waits for the one before."""

    def __init__(self, *, behind: bool) -> None:
        self._behind = behind
        self._flying: Load | None = None
        self._carried_ms = 0.0

    def pair(self, load: Load) -> tuple[Load, float] | None:
        """The sweep that is over with this step and its seconds; None if none is."""
        launched = load if load.prompt_tokens or load.decode_tokens else None
        over, self._flying = (self._flying, launched) if self._behind else (launched, None)
        spent, self._carried_ms = self._carried_ms + load.sweep_ms, 0.0
        if over is None:
            # The launch of the first sweep after a rest is part of what that sweep takes.
            self._carried_ms = spent if launched is not None else 0.0
            return None
        return over, spent / 1e3
