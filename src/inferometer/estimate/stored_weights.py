"""What format the weights of a checkpoint are in, in words: where that is stated, which parts have it, and what they are multiplied in."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.estimate.limits import Limits
from inferometer.estimate.memory import weight_parts
from inferometer.estimate.request import Request
from inferometer.model.formats import WeightFormat
from inferometer.model.parameters import attention_matrices
from inferometer.model.spec import ModelSpec

_ELEMENTS = {"int8": "whole numbers of 8 bits", "int4": "whole numbers of 4 bits", "fp8": "e4m3", "mxfp4": "e2m1"}


def stored_words(request: Request, limits: Limits) -> str | None:
    """One line, None for weights that are in the activations' type or that a run would round by itself."""
    form, dtype = request.formats.weights, request.formats.dtype
    if not request.stored or form is None:
        return None
    where = f", says {request.stated}" if request.stated else ""
    narrow = form.compute is not None and form.compute in limits.matmul
    products = f"products in {form.compute}" if narrow else f"widened to {dtype} for products"
    head = ", head in int8" if form.head == "int8" else ""
    return f"{_parts(request.spec, form)} in {form.name} ({_numbers(form)}){head}, all else in {dtype}{where}; {products}"


def stored_parts(request: Request) -> Mapping[str, int]:
    """Bytes on a device of each part of a checkpoint in few bits, whose parts differ in them; none where layers are shared out, or on the
    host, so that they would not add up to what the device holds."""
    whole = request.layout.devices == 1 or request.layout.parallel == "tensor"
    told = request.stored and whole and not request.offload.weights
    return weight_parts(request.spec, request.formats, request.stack) if told else {}


def _numbers(form: WeightFormat) -> str:
    element = _ELEMENTS.get(form.element, form.element)
    if not form.scale_bits:
        return f"{element}, a scale for each matrix"
    over = "row" if form.group is None else f"{form.rows} x {form.group}" if form.rows > 1 else str(form.group)
    zero = ", zero point included," if form.asymmetric else ""
    return f"{element}, {form.scale_bits} bits of scale{zero} for each {over}"


def _parts(spec: ModelSpec, form: WeightFormat) -> str:
    """The parts of a layer that are in the format, with how many layers where those are not all that have them."""
    dense = spec.layers if spec.experts is None else spec.experts.dense_layers
    mixed, shared = spec.layers - dense, 0 if spec.experts is None else spec.experts.shared
    parts = (
        ("attention", attention_matrices(spec), spec.layers),
        ("feed-forward", ("feed_forward.up", "feed_forward.down"), dense),
        ("experts", ("feed_forward.experts.up", "feed_forward.experts.down"), mixed),
        ("shared experts", ("feed_forward.shared.up", "feed_forward.shared.down"), mixed if shared else 0),
    )
    found = []
    for part, matrices, layers in parts:
        counts = {matrix: layers - form.layers_kept(matrix, layers) for matrix in matrices}
        alike = {part: counts[matrices[0]]} if len(set(counts.values())) == 1 else counts
        found += [name if count == layers else f"{name} of {count} of {layers} layers" for name, count in alike.items() if count]
    return ", ".join(found) or "nothing"
