"""A matrix that a checkpoint stores in few bits, and where a part of it lies in its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from inferometer.model.quantisation import Quantisation
from inferometer.nn.source import Extent

HEAD_SCALE: Final = "row_scale"
"""What the scales of a head in 8 bits are called behind the matrix's name, in this package's own format."""
HEAD: Final = Quantisation(method="inferometer", element="int8")


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """The tensors of one matrix (outputs, inputs), by what they are: data, scale, zero, order.

    head: whether it is one in 8 bits, whatever the checkpoint's format: rows of tokens, which no family keeps as columns.
    """

    name: str
    outputs: int
    inputs: int
    parts: Mapping[str, str]
    head: bool = False

    def how(self, others: Quantisation) -> Quantisation:
        """How it is stored, where `others` says so of the layers' matrices."""
        return HEAD if self.head else others


def group_of(matrix: StoredMatrix, how: Quantisation) -> int:
    """Inputs that share a scale; of one group in all, a multiple of 32 that holds them."""
    return how.group or -(-matrix.inputs // 32) * 32


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Some outputs, eight by eight, and inputs, group by group, of a matrix that is stored."""

    whole: StoredMatrix
    how: Quantisation
    outputs: range
    inputs: range

    @property
    def matrix(self) -> StoredMatrix:
        """The part as a matrix of its own."""
        return replace(self.whole, outputs=len(self.outputs), inputs=len(self.inputs), parts=self.parts)

    @property
    def parts(self) -> Mapping[str, str]:
        """Of fewer inputs there is no order: each knows its group by its place."""
        cut = len(self.inputs) < self.whole.inputs
        return {part: name for part, name in self.whole.parts.items() if part != "shape" and not (cut and part == "order")}

    def extent(self, part: str, shape: tuple[int, ...]) -> Extent:
        """Where in the stored tensor of this shape the part lies."""
        if part == "order":
            return ((0, shape[0]),)
        outputs, inputs = (self.outputs.start, self.outputs.stop), (self.inputs.start, self.inputs.stop)
        packed_outputs, packed_inputs = _eighths(outputs), _eighths(inputs)
        if self.how.element == "int4":
            group = group_of(self.whole, self.how)
            groups = inputs[0] // group, -(-inputs[1] // group)
            match self.how.method, part:
                case "inferometer", "data":
                    return outputs, (inputs[0] // 2, -(-inputs[1] // 2))
                case "gptq", "data":
                    return packed_inputs, outputs
                case "awq", "data":
                    return inputs, packed_outputs
                case "compressed-tensors", "data":
                    return outputs, packed_inputs
                case "gptq" | "awq", "zero":
                    return groups, packed_outputs
                case "gptq" | "awq", _:
                    return groups, outputs
                case "compressed-tensors", "zero":
                    return packed_outputs, groups
                case _:
                    return outputs, groups
        if part == "data":
            return outputs, inputs
        # A scale, or a zero point, for each output or one for all.
        return tuple(outputs if size == self.whole.outputs and i == 0 else (0, size) for i, size in enumerate(shape))


def _eighths(bounds: tuple[int, int]) -> tuple[int, int]:
    return bounds[0] // 8, -(-bounds[1] // 8)
