"""How large sweeps are, where weights come in with each of them as well: a number, settled before anything runs."""

from __future__ import annotations

from dataclasses import replace

import torch

from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sizes import SWEEP_TOKENS
from inferometer.estimate.beside_link import prompt_tokens
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.host_stream import HOST_SHARE
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.power import power
from inferometer.estimate.stack import find_stack
from inferometer.hardware.calibration import load_calibrations
from inferometer.hardware.catalogue import find_device, match_driver_name
from inferometer.hardware.detect import detect
from inferometer.hardware.links import host_link
from inferometer.model.formats import Formats, WeightFormat
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import Admission
from inferometer.schedule.groups import Diagonal


def tokens_beside_the_link(model: Transformer, weights: WeightFormat | None = None) -> int | None:
    """The prompt tokens that the device computes while a sweep's weights come in.

    weights: their format, if they are in few bits. By the estimator's prices and the link as it was measured on this machine, or is
    described. None where no weights come, and for a device that the catalogue lacks.
    """
    residency = model.residency
    if not isinstance(residency, StreamedLayers) or not residency.placement.streamed_bytes or model.device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(model.device)
    slug = match_driver_name(properties.name, properties.total_memory)
    if slug is None:
        return None
    device = find_device(slug)
    calibration = load_calibrations(detect().fingerprint).for_slug(slug)
    measured = None if calibration is None else calibration.host_to_device_bytes_s
    link = host_link(device)
    rate = measured or (None if link is None else link.bandwidth_bytes_s * HOST_SHARE)
    if rate is None:
        return None
    deployment = Deployment(
        spec=model.spec,
        device=device,
        stack=find_stack("native"),
        layout=Layout(),
        formats=Formats(dtype=str(model.dtype).removeprefix("torch."), weights=weights),
        limits=limits(device, calibration),
        power=power(device),
    )
    return prompt_tokens(deployment, residency.placement.streamed_bytes, rate)


def sweep_tokens_for(admission: Admission, beside: int | None, seats: int) -> int:
    """The most tokens of a sweep: no fewer than elsewhere, and room for those that decode beside the prompts.

    In diagonal order somebody always does: a group whose prompts fill a sweep would else take two.
    """
    if beside is None:
        return SWEEP_TOKENS + seats if isinstance(admission, Diagonal) else SWEEP_TOKENS
    return max(SWEEP_TOKENS, beside + seats)


def over_the_link(admission: Admission, beside: int | None) -> Admission:
    """The same order with so many prompt tokens beside a sweep's weights; None leaves it as it is."""
    return replace(admission, prompt_tokens=beside) if isinstance(admission, Diagonal) and beside is not None else admission
