"""The format that an estimate prices weights in: the one that is asked for, or the one that the checkpoint is in."""

from __future__ import annotations

from typing import Final

from inferometer.errors import UserError
from inferometer.estimate.stack import Stack
from inferometer.model.formats import WeightFormat
from inferometer.model.published import Published
from inferometer.model.quantisation import Quantisation, resolve_quantize
from inferometer.model.spec import ModelSpec

WIDENED: Final = "none"
"""The --quantize value that asks for weights in the activations' type, also of a checkpoint that is in a format which is only estimated."""


def asked_weights(
    quantize: str | None, spec: ModelSpec, stack: Stack, dtype: str, stored: Published | Quantisation | None
) -> WeightFormat | None:
    """The format of the weights, None for the activations' type. stored: what the checkpoint is in.

    Raises UserError for an unknown name, and where another format is asked for than the checkpoint is in.
    """
    if isinstance(stored, Published):
        return _published(quantize, stored, spec, dtype)
    if stored is not None and quantize == WIDENED:
        raise UserError(
            f"--quantize {quantize}: the checkpoint is in {stored.named}, and so it is run; leave it out, or use the checkpoint before "
            "quantisation"
        )
    if stored is not None:
        return resolve_quantize(quantize, stored)
    return None if quantize in (None, WIDENED) else stack.weights(quantize, dtype)


def _published(quantize: str | None, published: Published, spec: ModelSpec, dtype: str) -> WeightFormat | None:
    if quantize == WIDENED:
        return None
    if quantize not in (None, published.method, published.named):
        raise UserError(
            f"--quantize {quantize}: the checkpoint is in {published.named} already; leave it out, or use --quantize {WIDENED} for its "
            f"weights widened to {dtype}"
        )
    return published.weights(spec, spec.name)
