"""The files that estimates are made from."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from inferometer.estimate.deviation import load_deviations
from inferometer.estimate.stack import STACKS
from inferometer.hardware.catalogue import slugs
from inferometer.hardware.links import link_kinds
from inferometer.model.presets import PRESETS


def read_tables() -> int:
    """Reads presets, devices, links, stacks and errors, which all stay in memory, and imports what asks for a GPU.

    The first estimate would do it otherwise, and take ten times what the others do. Returns how many entries there are.
    """
    for module in ("inferometer.hardware.detect", "pynvml"):
        with suppress(ImportError):
            import_module(module)
    return sum(map(len, (PRESETS, slugs(), link_kinds(), STACKS, load_deviations())))
