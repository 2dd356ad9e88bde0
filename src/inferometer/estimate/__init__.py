"""What a model will cost on a device: time, memory and energy, each beside its physical limit. Runs without torch."""

from __future__ import annotations

from inferometer.estimate.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
