"""Checkpoints whose matrices are in few bits, presented as the plain ones that they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.kernels.quant_weight import DATA_DTYPES, Activations, QuantWeight
from inferometer.kernels.support import capability
from inferometer.model.checkpoint import Family
from inferometer.model.parameters import parameters
from inferometer.model.quantisation import Quantisation
from inferometer.model.shard import WHOLE, Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.cutting import cut_inputs, whole_groups
from inferometer.nn.formats.layout import FP8_CAPABILITY, Layouts, QuantLayout, layer_matrices
from inferometer.nn.formats.rounding import packed
from inferometer.nn.formats.stored_part import StoredMatrix, StoredPart, group_of
from inferometer.nn.formats.unpacking import AWQ_ORDER, nibbles_along
from inferometer.nn.names import resolve
from inferometer.nn.source import CheckpointSource, Extent

T = TypeVar("T")
SCALE_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


class RawSource(CheckpointSource, Protocol):
    """A source that can also be read as it is stored."""

    def raw(self, name: str, extent: Extent | None = None) -> Tensor:
        """The tensor on the CPU, in whatever type it has, or a part of it; ModelError where it is damaged."""
        ...


class QuantisedSource:
    """A checkpoint of matrices in few bits.

    tensors and read speak of plain matrices under their usual names; `quantised` gives one as it is. transposed: whether the family's
    linear maps keep their weights as (inputs, outputs).
    Raises ModelError, naming tensor and file, where tensors are missing or of other shapes or types than the format says.
    """

    def __init__(self, source: RawSource, how: Quantisation, *, transposed: bool) -> None:
        self._source, self._how, self._transposed = source, how, transposed
        shapes = source.tensors()
        self._matrices = {matrix.name: matrix for matrix in _matrices(source, how)}
        if not self._matrices:
            raise ModelError(f"{source.where('')}: holds no matrices of {how.method}, though its config.json says so")
        taken = {part for matrix in self._matrices.values() for part in matrix.parts.values()}
        bases = {name.removesuffix("weight") for name in self._matrices}
        spare = {base + suffix for base in bases for suffix in _SPARE}
        self._shapes = {name: shape for name, shape in shapes.items() if name not in taken and name not in spare}
        for matrix in self._matrices.values():
            shape = (matrix.outputs, matrix.inputs)
            self._shapes[matrix.name] = shape[::-1] if transposed else shape
        self.quantised = lru_cache(maxsize=1)(self._quantised)

    @property
    def dtype(self) -> torch.dtype | None:
        # What is left plain may be kept in float32 so that it is exact, which is no reason to compute in it.
        dtype = self._source.dtype
        return None if dtype == torch.float32 else dtype

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def finest(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        if name not in self._matrices:
            return self._source.read(name, device, dtype)
        matrix = self.quantised(name).dequantised().to(device=device, dtype=dtype)
        return matrix.t() if self._transposed else matrix

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        if name not in self._matrices:
            return self._source.read_part(name, extent, device, dtype)
        outputs, inputs = (range(*bounds) for bounds in (extent[::-1] if self._transposed else extent))
        matrix, (layout, order) = self._matrices[name], self.outline(name)
        # Inputs in another order are anywhere: all of them, for these outputs.
        columns = range(matrix.inputs) if order is not None else whole_groups(inputs, layout.group, matrix.inputs)
        part = self.quantised_part(name, outputs, columns, layout.group).dequantised()
        part = part[:, inputs.start - columns.start : inputs.stop - columns.start].to(device=device, dtype=dtype)
        return part.t() if self._transposed else part

    def quantised_part(self, name: str, outputs: range | None, inputs: range | None, group: int | None) -> QuantWeight:
        """Some outputs and inputs of a matrix, on the CPU, as `cut_inputs` has them; None for all. Of one with an order, all inputs."""
        matrix, width = self._matrices[name], None
        if self._how.element == "int4":
            width = group_of(matrix, self._how)
        own = range(matrix.outputs) if outputs is None else outputs
        columns = range(matrix.inputs) if inputs is None else whole_groups(inputs, width, matrix.inputs)
        if inputs is not None and width is not None and width >= matrix.inputs:  # one group, whose scale every part of it has
            columns = _by_eights(inputs, matrix.inputs)
        part = StoredPart(matrix, self._how, _by_eights(own, matrix.outputs), columns)
        tensors = {what: self._source.raw(stored, part.extent(what, self._shape(stored))) for what, stored in part.parts.items()}
        found = self._guarded(name, lambda: _READERS[self._how.method](part.matrix, tensors, self._how))
        found = found.rows(own.start - part.outputs.start, own.stop - part.outputs.start)
        if inputs is None or inputs == columns:
            return found
        return cut_inputs(found, range(inputs.start - columns.start, inputs.stop - columns.start), group)

    def _shape(self, stored: str) -> tuple[int, ...]:
        return self._source.tensors()[stored]

    def holds(self, name: str) -> bool:
        """Whether the matrix of this name is in few bits."""
        return name in self._matrices

    def outline(self, name: str) -> tuple[QuantLayout, Tensor | None]:
        """The layout of a matrix that is in few bits, and its order of inputs; its numbers are not read."""
        matrix = self._matrices[name]
        order = None
        if self._how.element != "int4":
            return QuantLayout(self._how.element, activations="int8" if self._how.rounds else "wide"), None
        if "order" in matrix.parts:
            groups = self._source.raw(matrix.parts["order"])
            order = groups if self._how.method == "inferometer" else self._guarded(name, lambda: _order(matrix, groups, self._how))
        zero = "zero" in matrix.parts and not (self._how.method == "compressed-tensors" and self._how.symmetric)
        scale = self._source.raw(matrix.parts["scale"]).dtype
        return QuantLayout("int4", group_of(matrix, self._how), zero=zero, ordered=order is not None, scale=scale), order

    def where(self, name: str) -> str:
        matrix = self._matrices.get(name)
        return self._source.where(name if matrix is None else matrix.parts["data"])

    def close(self) -> None:
        self.quantised.cache_clear()
        self._source.close()

    def _quantised(self, name: str) -> QuantWeight:
        """The matrix on the CPU, its outputs in the checkpoint's order."""
        matrix = self._matrices[name]
        tensors = {part: self._source.raw(stored) for part, stored in matrix.parts.items()}
        return self._guarded(name, lambda: _READERS[self._how.method](matrix, tensors, self._how))

    def _guarded(self, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (ValueError, RuntimeError, IndexError) as error:
            words = " ".join(str(error).split())
            raise ModelError(f"{self.where(name)}: the matrix {name} is not what {self._how.method} says: {words}") from None


def _by_eights(numbers: range, width: int) -> range:
    """All of the words of eight that hold these."""
    return range(numbers.start // 8 * 8, min(-(-numbers.stop // 8) * 8, width))


def stored_layouts(spec: ModelSpec, source: QuantisedSource, family: Family, device: torch.device, shard: Shard = WHOLE) -> Layouts:
    """How the model's matrices are kept: as they are stored, where all that make up one are stored alike; else plain.

    shard: this rank's. A matrix whose inputs are not in the order of their groups is plain where ranks cut it by input: no rank has whole
    groups of it.
    """
    shapes = {parameter.name: parameter.shape for parameter in parameters(spec)}
    names, pieces = resolve(spec, source, family), family.pieces(spec)
    found = {}
    for parameter in layer_matrices(spec):
        stored = [names[piece.tensor] for piece in pieces[parameter]]
        if not all(map(source.holds, stored)):
            continue
        (layout, order), *others = [source.outline(name) for name in stored]
        if order is not None and shard.cut(spec, parameter, shapes[parameter]).columns is not None:
            continue
        if all(other == layout and _same(theirs, order) for other, theirs in others):
            rounds = layout.kind == "fp8" and capability(device) >= FP8_CAPABILITY
            found[parameter] = replace(layout, activations="fp8") if rounds else layout
    return found


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


_SPARE: Final = ("bias_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "g_idx", "input_scale", "input_zero_point", "qzeros")


def _matrices(source: RawSource, how: Quantisation) -> list[StoredMatrix]:
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
    order = None if groups is None else _order(matrix, groups, how)
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


def _order(matrix: StoredMatrix, groups: Tensor, how: Quantisation) -> Tensor | None:
    """int32 (inputs,): the inputs by group; None where they are in that order already. groups: which group each input belongs to."""
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


_READERS: Final = {"inferometer": _own, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed}
