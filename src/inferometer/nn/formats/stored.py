"""Checkpoints whose matrices are in few bits, presented as the plain ones that they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.support import capability
from inferometer.model.checkpoint import Family
from inferometer.model.parameters import head_matrix, parameters
from inferometer.model.quantisation import Quantisation
from inferometer.model.shard import WHOLE, Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.cutting import cut_inputs, whole_groups
from inferometer.nn.formats.layout import FP8_CAPABILITY, HEAD_LAYOUT, Layouts, QuantLayout, layer_matrices
from inferometer.nn.formats.stored_matrices import READERS, SPARE, RawSource, order_of, stored_matrices
from inferometer.nn.formats.stored_part import StoredPart, group_of
from inferometer.nn.names import resolve
from inferometer.nn.source import Extent

T = TypeVar("T")


class QuantisedSource:
    """A checkpoint of matrices in few bits.

    tensors and read speak of plain matrices under their usual names; `quantised` gives one as it is. transposed: whether the family's
    linear maps keep their weights as (inputs, outputs).
    Raises ModelError, naming tensor and file, where tensors are missing or of other shapes or types than the format says.
    """

    def __init__(self, source: RawSource, how: Quantisation, *, transposed: bool) -> None:
        self._source, self._how, self._transposed = source, how, transposed
        shapes = source.tensors()
        self._matrices = {matrix.name: matrix for matrix in stored_matrices(source, how)}
        if not self._matrices:
            raise ModelError(f"{source.where('')}: holds no matrices of {how.method}, though its config.json says so")
        taken = {part for matrix in self._matrices.values() for part in matrix.parts.values()}
        bases = {name.removesuffix("weight") for name in self._matrices}
        spare = {base + suffix for base in bases for suffix in SPARE}
        self._shapes = {name: shape for name, shape in shapes.items() if name not in taken and name not in spare}
        for matrix in self._matrices.values():
            shape = (matrix.outputs, matrix.inputs)
            self._shapes[matrix.name] = shape[::-1] if self._turned(matrix.name) else shape
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
        return matrix.t() if self._turned(name) else matrix

    def read_part(self, name: str, extent: Extent, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        if name not in self._matrices:
            return self._source.read_part(name, extent, device, dtype)
        outputs, inputs = (range(*bounds) for bounds in (extent[::-1] if self._turned(name) else extent))
        matrix, (layout, order) = self._matrices[name], self.outline(name)
        # Inputs in another order are anywhere: all of them, for these outputs.
        columns = range(matrix.inputs) if order is not None else whole_groups(inputs, layout.group, matrix.inputs)
        part = self.quantised_part(name, outputs, columns, layout.group).dequantised()
        part = part[:, inputs.start - columns.start : inputs.stop - columns.start].to(device=device, dtype=dtype)
        return part.t() if self._turned(name) else part

    def quantised_part(self, name: str, outputs: range | None, inputs: range | None, group: int | None) -> QuantWeight:
        """Some outputs and inputs of a matrix, on the CPU, as `cut_inputs` has them; None for all. Of one with an order, all inputs."""
        matrix, width = self._matrices[name], None
        how = matrix.how(self._how)
        if how.element == "int4":
            width = group_of(matrix, how)
        own = range(matrix.outputs) if outputs is None else outputs
        columns = range(matrix.inputs) if inputs is None else whole_groups(inputs, width, matrix.inputs)
        if inputs is not None and width is not None and width >= matrix.inputs:  # one group, whose scale every part of it has
            columns = _by_eights(inputs, matrix.inputs)
        part = StoredPart(matrix, how, _by_eights(own, matrix.outputs), columns)
        tensors = {what: self._source.raw(stored, part.extent(what, self._shape(stored))) for what, stored in part.parts.items()}
        found = self._guarded(name, lambda: READERS[how.method](part.matrix, tensors, how))
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
        """The layout of a matrix that is in few bits, and its order of inputs, int32 (inputs,); its numbers are not read."""
        matrix = self._matrices[name]
        order, how = None, matrix.how(self._how)
        if how.element != "int4":
            return QuantLayout(how.element, activations="int8" if how.rounds else "wide"), None
        if "order" in matrix.parts:
            groups = self._source.raw(matrix.parts["order"])
            order = groups if how.method == "inferometer" else self._guarded(name, lambda: order_of(matrix, groups, how))
        zero = "zero" in matrix.parts and not (how.method == "compressed-tensors" and how.symmetric)
        scale = self._source.raw(matrix.parts["scale"]).dtype
        return QuantLayout("int4", group_of(matrix, how), zero=zero, ordered=order is not None, scale=scale), order

    def where(self, name: str) -> str:
        matrix = self._matrices.get(name)
        return self._source.where(name if matrix is None else matrix.parts["data"])

    def close(self) -> None:
        self.quantised.cache_clear()
        self._source.close()

    def _quantised(self, name: str) -> QuantWeight:
        """The matrix on the CPU, its outputs in the checkpoint's order."""
        matrix = self._matrices[name]
        tensors, how = {part: self._source.raw(stored) for part, stored in matrix.parts.items()}, matrix.how(self._how)
        return self._guarded(name, lambda: READERS[how.method](matrix, tensors, how))

    def _turned(self, name: str) -> bool:
        return self._transposed and not self._matrices[name].head

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
    groups of it. So is a head in another layout than HEAD_LAYOUT, as some of other methods are: launches that choose tokens take no other.
    """
    shapes = {parameter.name: parameter.shape for parameter in parameters(spec)}
    names, pieces = resolve(spec, source, family), family.pieces(spec)
    found = {}
    head = head_matrix(spec)
    for parameter in (*layer_matrices(spec), *(() if head is None else (head,))):
        stored = [names[piece.tensor] for piece in pieces[parameter]]
        if not all(map(source.holds, stored)):
            continue
        (layout, order), *others = [source.outline(name) for name in stored]
        if parameter == head and layout != HEAD_LAYOUT:
            continue
        if order is not None and shard.cut(spec, parameter, shapes[parameter]).columns is not None:
            continue
        if all(other == layout and _same(theirs, order) for other, theirs in others):
            rounds = layout.kind == "fp8" and capability(device) >= FP8_CAPABILITY
            found[parameter] = replace(layout, activations="fp8") if rounds else layout
    return found


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
