"""How each method stores a matrix in few bits: what its parts are called, and the weight that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.kernels.quant_weight import DATA_DTYPES, Activations, QuantWeight
from inferometer.model.quantisation import Quantisation
from inferometer.nn.formats.rounding import packed
from inferometer.nn.formats.stored_part import HEAD_SCALE, StoredMatrix, group_of
from inferometer.nn.formats.unpacking import AWQ_ORDER, nibbles_along
from inferometer.nn.source import CheckpointSource, Extent

SCALE_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


class RawSource(CheckpointSource, Protocol):
    """A source that can also be read as it is stored."""

    def raw(self, name: str, extent: Extent | None = None) -> Tensor:
        """The tensor on the CPU, in whatever type it has, or a part of it. Raises ModelError where it is damaged."""
        ...


SPARE: Final = ("bias_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "g_idx", "input_scale", "input_zero_point", "qzeros")
"""What may stand beside a matrix under the name of its linear map, and is none of the model's tensors."""


def stored_matrices(source: RawSource, how: Quantisation) -> list[StoredMatrix]:
    """The matrices in few bits that the checkpoint holds. Raises ModelError for one that lacks a part, or whose sizes do not agree."""
    shapes = source.tensors()
    marker = {
        "inferometer": "weight",
        "gptq": "qweight",
        "awq": "qweight",
        "compressed-tensors": "weight_packed" if how.element == "int4" else "weight",
    }
    mark, found = marker[how.method], []
    for name, shape in shapes.items():
        base = name.removesuffix(mark)
        if base == name or (base and not base.endswith(".")):
            continue
        if how.method == "inferometer" and (scale := f"{name}_{HEAD_SCALE}") in shapes:
            if len(shape) != 2:
                raise ModelError(f"{source.where(name)}: the matrix {name} is of {len(shape)} dimensions; fetch the model again")
            found.append(StoredMatrix(name, *shape, {"data": name, "scale": scale}, head=True))
            continue
        wanted = _parts(how)
        if mark == "weight" and base + wanted["scale"] not in shapes:
            continue  # a plain one
        parts = {"data": name} | {part: base + stored for part, stored in wanted.items() if base + stored in shapes}
        lacking = [stored for part, stored in wanted.items() if part in ("scale", "shape") and part not in parts]
        if lacking or len(shape) != 2:
            what = f"lacks {base}{lacking[0]}" if lacking else f"is of {len(shape)} dimensions"
            raise ModelError(f"{source.where(name)}: the matrix {name} {what}; fetch the model again")
        outputs, inputs = _sizes(source, how, parts, shape)
        found.append(StoredMatrix(base + "weight", outputs, inputs, parts))
    return found


def _parts(how: Quantisation) -> dict[str, str]:
    """Where the parts of a matrix are, behind the name of its linear map."""
    if how.method == "inferometer":
        parts = {"scale": "weight_scale", "zero": "weight_zero", "order": "weight_order"}
        return parts | ({"shape": "weight_shape"} if how.element == "int4" else {})
    if how.method == "compressed-tensors":
        parts = {"scale": "weight_scale", "zero": "weight_zero_point", "order": "weight_g_idx"}
        return parts | ({"shape": "weight_shape"} if how.element == "int4" else {})
    return {"scale": "scales", "zero": "qzeros", "order": "g_idx"}


def _sizes(source: RawSource, how: Quantisation, parts: Mapping[str, str], shape: tuple[int, ...]) -> tuple[int, int]:
    if how.method == "gptq":
        return shape[1], 8 * shape[0]
    if how.method == "awq":
        return 8 * shape[1], shape[0]
    if "shape" not in parts:
        return shape[0], shape[1]
    sizes = [int(size) for size in source.raw(parts["shape"]).flatten()[:2].tolist()]
    if len(sizes) != 2 or min(sizes) < 1 or sizes[0] != shape[0]:
        raise ModelError(f"{source.where(parts['shape'])}: {parts['shape']} says {sizes}, which {parts['data']} is not")
    return sizes[0], sizes[1]


def _own(matrix: StoredMatrix, tensors: Mapping[str, Tensor], how: Quantisation) -> QuantWeight:
    data = tensors["data"]
    if data.dtype != DATA_DTYPES[how.element]:
        raise ValueError(f"its type is {data.dtype}")
    if not how.symmetric and "zero" not in tensors:
        raise ValueError("it has no zero points")
    group = group_of(matrix, how) if how.element == "int4" else None
    activations: Activations = "int8" if how.rounds else "wide"
    return QuantWeight(
        how.element, matrix.inputs, data, tensors["scale"], tensors.get("zero"), group, tensors.get("order"), activations=activations
    )


def _gptq(matrix: StoredMatrix, tensors: Mapping[str, Tensor], how: Quantisation) -> QuantWeight:
    levels = nibbles_along(_words(tensors, "data"), 0).t()
    zero = None
    if "zero" in tensors:
        zero = (nibbles_along(_words(tensors, "zero"), 1).t()[: matrix.outputs].float() + how.offset).to(tensors["scale"].dtype)
    return _grouped(matrix, levels, tensors["scale"].t(), zero, tensors.get("order"), how)


def _awq(matrix: StoredMatrix, tensors: Mapping[str, Tensor], how: Quantisation) -> QuantWeight:
    levels = nibbles_along(_words(tensors, "data"), 1, AWQ_ORDER).t()
    zero = None
    if "zero" in tensors:
        zero = nibbles_along(_words(tensors, "zero"), 1, AWQ_ORDER).t().to(tensors["scale"].dtype)
    return _grouped(matrix, levels, tensors["scale"].t(), zero, None, how)


def _compressed(matrix: StoredMatrix, tensors: Mapping[str, Tensor], how: Quantisation) -> QuantWeight:
    scale = tensors["scale"]
    if how.element == "int4":
        levels = nibbles_along(_words(tensors, "data"), 1)[:, : matrix.inputs]
        zero = None
        if "zero" in tensors and not how.symmetric:
            zero = nibbles_along(_words(tensors, "zero"), 0)[: matrix.outputs].to(scale.dtype)
        return _grouped(matrix, levels, scale, zero, tensors.get("order"), how)
    data = tensors["data"]
    if data.dtype != DATA_DTYPES[how.element]:
        raise ValueError(f"its type is {data.dtype}")
    if "zero" in tensors and bool(tensors["zero"].float().any()):
        raise ValueError("it has zero points other than 0")
    scale = scale.float().flatten()
    if scale.numel() not in (1, matrix.outputs):
        raise ValueError(f"it has {scale.numel()} scales for {matrix.outputs} outputs")
    scale = scale.expand(matrix.outputs).contiguous()
    return QuantWeight(how.element, matrix.inputs, data.contiguous(), scale, activations="int8" if how.rounds else "wide")


def _grouped(
    matrix: StoredMatrix, levels: Tensor, scale: Tensor, zero: Tensor | None, groups: Tensor | None, how: Quantisation
) -> QuantWeight:
    """levels: (outputs, inputs). groups: which group each input belongs to, None for one after another."""
    if scale.dtype not in SCALE_DTYPES:
        raise ValueError(f"its scales are {scale.dtype}")
    if levels.shape != (matrix.outputs, matrix.inputs):
        raise ValueError(f"it has {tuple(levels.shape)} numbers")
    order = None if groups is None else order_of(matrix, groups, how)
    if order is not None:
        levels = levels[:, order.long()]
    return QuantWeight(
        "int4",
        matrix.inputs,
        packed(levels.contiguous()),
        scale.contiguous(),
        None if zero is None else zero.contiguous(),
        group_of(matrix, how),
        order,
    )


def order_of(matrix: StoredMatrix, groups: Tensor, how: Quantisation) -> Tensor | None:
    """int32 (inputs,): the inputs by group; None where they are in that order already. groups: which group each input
    belongs to, of any whole type (inputs,). Raises ValueError where those are no groups of the size that is stated.
    """
    plain, groups = torch.arange(matrix.inputs) // group_of(matrix, how), groups.to(torch.int64)
    if groups.shape != plain.shape:
        raise ValueError(f"its g_idx has {groups.numel()} numbers for {matrix.inputs} inputs")
    if torch.equal(groups, plain):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], plain):
        raise ValueError(f"its g_idx does not make groups of {group_of(matrix, how)} inputs")
    return order.to(torch.int32)


def _words(tensors: Mapping[str, Tensor], part: str) -> Tensor:
    words = tensors[part]
    if words.dtype != torch.int32 or words.dim() != 2:
        raise ValueError(f"its {part} is {words.dtype} of {words.dim()} dimensions")
    return words


READERS: Final = {"inferometer": _own, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed}
"""By method: (matrix, its parts as stored, how) -> the weight. Each raises ValueError where the parts are not what the method says."""
