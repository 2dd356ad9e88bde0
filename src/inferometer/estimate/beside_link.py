"""What runs beside weights that come over the link with every sweep."""

from __future__ import annotations

from inferometer.estimate.deployment import Deployment
from inferometer.model.step import encode, prefill

MOST_TOKENS = 16384
"""Beyond, activations take more memory than the few percent of time are worth that a longer sweep still saves."""

LENGTH = 512
"""Tokens of the prompts that are priced: attention is a small part of them, as it is of all but very long ones."""


def prompt_tokens(deployment: Deployment, streamed_bytes: float, host_bytes_s: float) -> int:
    """The prompt tokens that a device computes while so many bytes of weights come to it: at least 1, at most MOST_TOKENS.

    A sweep of fewer leaves the device idle, one of more the link.
    """
    enter = encode if deployment.spec.encoder else prefill
    allowed_ms = 1e3 * streamed_bytes / host_bytes_s
    few, many = 0, MOST_TOKENS // LENGTH
    if deployment.cost(enter(many, LENGTH)).ms <= allowed_ms:
        return MOST_TOKENS
    while many - few > 1:
        middle = (few + many) // 2
        if deployment.cost(enter(middle, LENGTH)).ms <= allowed_ms:
            few = middle
        else:
            many = middle
    low = deployment.cost(enter(few, LENGTH)).ms if few else 0.0
    high = deployment.cost(enter(many, LENGTH)).ms
    return max(1, int(LENGTH * (few + (allowed_ms - low) / (high - low) * (many - few))))
