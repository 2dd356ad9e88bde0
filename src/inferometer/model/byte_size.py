"""A number of bytes as a reader wants it."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("GiB", 1 << 30, 0.1), ("MiB", 1 << 20, 1), ("KiB", 1 << 10, 1))
"""Each with the least of it that is told in it, so that no small model is said to take 0.00 GiB."""


def gib(size_bytes: float, digits: int = 2) -> str:
    """As in "12.40 GiB", with `digits` after the point; less than a tenth of one as in "96.3 MiB", "4.0 KiB" or "17 B"."""
    for unit, scale, least in _UNITS:
        if abs(size_bytes) >= least * scale:
            return f"{size_bytes / scale:,.{digits if unit == 'GiB' else 1}f} {unit}"
    return f"{size_bytes:.0f} B"
