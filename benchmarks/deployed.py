"""A model of a benchmark as the estimator sees it: what a step of it is expected to take here, and the least that it can take."""

from __future__ import annotations

from typing import Any

from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.power import power
from inferometer.estimate.stack import find_stack
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step


def deployed(spec: ModelSpec, calibration: Calibration, formats: Formats) -> Deployment:
    """The native stack on one device that was calibrated in the same run."""
    assert calibration.slug is not None
    device = find_device(calibration.slug)
    return Deployment(
        spec=spec,
        device=device,
        stack=find_stack("native"),
        layout=Layout(devices=1),
        formats=formats,
        limits=limits(device, calibration),
        power=power(device),
    )


def beside(where: Deployment, step: Step, measured_ms: float) -> dict[str, Any]:
    """What stands beside a measured step, as fields of its record: the bound and what binds, the prediction, and what share of the bound's
    rate was reached."""
    least = where.bound(step)
    return {
        "bound_ms": least.ms, "binds": least.binds, "of_bound": least.ms / measured_ms, "times_bound": measured_ms / least.ms,
        "predicted_ms": where.cost(step).ms,
    }  # fmt: skip
