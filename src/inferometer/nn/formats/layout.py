"""Which of a model's matrices are kept in few bits, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

import torch

from inferometer.kernels.quant_weight import DATA_DTYPES, Activations, Kind, QuantWeight
from inferometer.kernels.support import capability
from inferometer.model.formats import WeightFormat
from inferometer.model.parameters import head_matrix, parameters
from inferometer.model.spec import ModelSpec

FP8_CAPABILITY = (8, 9)
"""The lowest that multiplies e4m3 (Ada)."""


@dataclass(frozen=True, slots=True)
class QuantLayout:
    """A `QuantWeight` without its numbers; the fields are that one's. zero, ordered: whether it has zero points, and an order of inputs.

    scale: its type.
    """

    kind: Kind
    group: int | None = None
    zero: bool = False
    ordered: bool = False
    scale: torch.dtype = torch.float32
    activations: Activations = "wide"

    @classmethod
    def of(cls, form: WeightFormat, device: torch.device) -> QuantLayout:
        """What the layers' matrices are rounded to. Raises ValueError for a format of plain numbers."""
        if form.element == "int4":
            return cls("int4", form.group, zero=form.asymmetric, scale=torch.float16)
        if form.element == "int8":
            return cls("int8", activations="int8" if form.compute == "int8" else "wide")
        if form.element == "fp8":
            return cls("fp8", activations="fp8" if capability(device) >= FP8_CAPABILITY else "wide")
        raise ValueError(f"{form.name} is no format of few bits")

    def part(self, whole: int, inputs: int) -> QuantLayout:
        """Of some `inputs` of a matrix of `whole`, of which every rank has as many: their groups may have to be smaller."""
        if self.group is None or inputs == whole:
            return self
        if self.group >= whole or self.group % inputs == 0:  # all of them in one
            return replace(self, group=-(-inputs // 32) * 32)
        return replace(self, group=gcd(self.group, inputs))

    def empty(self, outputs: int, inputs: int, device: torch.device | str) -> QuantWeight:
        """A weight of so many numbers, uninitialised."""
        scales = (outputs,) if self.group is None else (outputs, -(-inputs // self.group))
        columns = -(-inputs // 2) if self.kind == "int4" else inputs
        return QuantWeight(
            kind=self.kind,
            inputs=inputs,
            data=torch.empty(outputs, columns, dtype=DATA_DTYPES[self.kind], device=device),
            scale=torch.empty(scales, dtype=self.scale, device=device),
            zero=torch.empty(scales, dtype=self.scale, device=device) if self.zero else None,
            group=self.group,
            order=torch.empty(inputs, dtype=torch.int32, device=device) if self.ordered else None,
            activations=self.activations,
        )


Layouts = Mapping[str, QuantLayout]
"""By the parameter's name; what is not named is plain."""


HEAD_LAYOUT = QuantLayout("int8")
"""Of the head's matrix in 8 bits, and so of the tokens' table where the two are one: rows of tokens, activations as they are."""


def layouts(spec: ModelSpec, layout: QuantLayout) -> Layouts:
    """Every matrix of every layer in one layout."""
    return dict.fromkeys(layer_matrices(spec), layout)


def format_layouts(spec: ModelSpec, form: WeightFormat, device: torch.device) -> Layouts:
    """What weights are rounded to for a format on a device. Raises ValueError for a format of plain numbers."""
    found = layouts(spec, QuantLayout.of(form, device))
    head = head_matrix(spec) if form.head == "int8" else None
    return found if head is None else {**found, head: HEAD_LAYOUT}


def layer_matrices(spec: ModelSpec) -> tuple[str, ...]:
    """The names of the matrices that layers multiply by. Embeddings, their projections, the pooler and the head are none."""
    return tuple(p.name for p in parameters(spec) if p.name.startswith("layers.") and len(p.shape) == 2)


def copy(target: QuantWeight, source: QuantWeight) -> None:
    """Fills `target` with the numbers of a weight of the same layout, wherever it is; raises ValueError for another layout."""
    for name in ("data", "scale", "zero", "order"):
        into, tensor = getattr(target, name), getattr(source, name)
        if (into is None) != (tensor is None):
            raise ValueError(f"the two weights differ in whether they have {name}")
        if into is not None:
            into.copy_(tensor)
