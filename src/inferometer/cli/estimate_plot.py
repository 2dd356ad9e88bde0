"""`inferometer estimate --plot`: the estimate as an image, or what happens as one thing about it changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inferometer.cli.options import svg_file
from inferometer.cli.written_file import write_file
from inferometer.errors import UserError
from inferometer.estimate.estimate import Estimate
from inferometer.hardware.catalogue import CPU, slugs

KINDS = ("breakdown", "roofline", "batch", "context", "card")
_BATCHES = tuple(2**power for power in range(10))
_CONTEXTS = tuple(2**power for power in range(5, 18))

Estimator = Callable[[Mapping[str, Any]], Estimate]


def add_plot_options(parser: argparse.ArgumentParser) -> None:
    """--plot and what it draws."""
    group = parser.add_argument_group("plot")
    group.add_argument("--plot", type=svg_file, metavar="FILE.svg", help="also draw the estimate, as an SVG image")
    group.add_argument(
        "--plot-kind",
        choices=KINDS,
        help="time by op, ops under the roofline, or times as batch, context or card change (default: breakdown)",
    )


def draw(kind: str | None, found: Estimate, again: Estimator) -> str:
    """The image, of the first kind if that is None. `again` gives the estimate with other batch_size, sequence_length or device.

    Points at which the request makes no sense, such as a context that the model does not have, are left out.
    Raises UserError where none is left.
    """
    from inferometer.report.estimates import plots as estimate_plots

    if kind in (None, "breakdown"):
        return estimate_plots.breakdown_of(found)
    if kind == "roofline":
        return estimate_plots.roofline_of(found)
    if kind == "card":
        # This machine is no card, and a file may describe one that the catalogue lacks.
        devices = {slug: {"device": slug} for slug in slugs() if slug != CPU} | {found.request.device.slug: {}}
        return estimate_plots.cards_of(_possible(devices, again))
    if kind == "batch":
        batches = sorted({*_BATCHES, found.request.workload.batch})
        return estimate_plots.sweep_of("batch", "sequences", _possible({batch: {"batch_size": batch} for batch in batches}, again))
    contexts = sorted({*_CONTEXTS, found.request.workload.length})
    return estimate_plots.sweep_of("context", "prompt tokens", _possible({n: {"sequence_length": n} for n in contexts}, again))


def write(path: Path, image: str) -> None:
    """Writes the image. Raises UserError where that cannot be."""
    write_file("--plot", path, image.encode())


def _possible(changes: Mapping[Any, Mapping[str, Any]], again: Estimator) -> dict[Any, Estimate]:
    found: dict[Any, Estimate] = {}
    reason = "nothing was asked for"
    for name, change in changes.items():
        try:
            found[name] = again(change)
        except UserError as error:
            reason = str(error)
    if not found:
        raise UserError(f"--plot: no point can be estimated: {reason}")
    return found
