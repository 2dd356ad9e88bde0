"""What a model will cost on a device: time, memory and energy, each beside its physical limit. Runs without torch.

Its tables are read when it is imported, so that an estimate takes milliseconds.
"""

from __future__ import annotations

from inferometer.estimate.estimate import Estimate, estimate
from inferometer.estimate.tables import read_tables

__all__ = ["Estimate", "estimate"]

read_tables()
