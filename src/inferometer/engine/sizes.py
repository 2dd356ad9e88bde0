"""The sizes that an engine has unless it is told others."""

from __future__ import annotations

from typing import Final

PAGE_SIZE: Final = 16
"""Tokens a page: large enough that a kernel reads long runs, small enough that a sequence wastes half of it at most."""

SEATS: Final = 256
"""Most sequences that run together."""

SWEEP_TOKENS: Final = 8192
"""The most tokens of one sweep: enough to fill a large GPU's matrix units, few enough that activations stay small."""
