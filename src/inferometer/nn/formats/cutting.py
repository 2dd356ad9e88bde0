"""Some inputs of a matrix in few bits, with the very numbers that they have in the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.nn.collective import Collective
from inferometer.nn.formats.layout import QuantLayout, copy
from inferometer.nn.formats.rounding import packed, rounded, row_maxima

_AT_ONCE = 1 << 22


def whole_groups(inputs: range, group: int | None, width: int) -> range:
    """The inputs of all groups that `inputs` of a matrix of `width` are part of."""
    if group is None:
        return inputs
    return range(inputs.start // group * group, min(-(-inputs.stop // group) * group, width))


def cut_inputs(weight: QuantWeight, inputs: range, group: int | None) -> QuantWeight:
    """Those inputs of a weight without an order, in groups of `group` of them, each of which lies within one of the weight's."""
    if weight.group is None:
        return QuantWeight(
            weight.kind, len(inputs), weight.data[:, inputs.start : inputs.stop].contiguous(), weight.scale, activations=weight.activations
        )
    assert group is not None
    assert weight.order is None
    firsts = torch.arange(inputs.start, inputs.stop, group, device=weight.device) // weight.group
    levels = weight.levels(torch.uint8)[:, inputs.start : inputs.stop]
    zero = None if weight.zero is None else weight.zero[:, firsts]
    return QuantWeight("int4", len(inputs), packed(levels), weight.scale[:, firsts], zero, group)


def round_cut(target: QuantWeight, matrix: Tensor, whole: QuantLayout, inputs: range, first: int, ranks: Collective) -> None:
    """Fills `target` with `inputs` of a matrix that is cut over ranks, rounded as the whole matrix would be.

    whole: its layout there. matrix: (outputs, columns) of any floating type, the inputs from `first` on: those of `whole_groups`. Where a
    scale is a row's, the ranks tell each other the largest number that they have of it: all ranks call this for the same matrices, in the
    same order.
    """
    largest = None
    if whole.group is None:
        largest = ranks.gather(row_maxima(matrix)[:, None]).amax(1)
    step = max(1, _AT_ONCE // matrix.shape[1])
    here = range(inputs.start - first, inputs.stop - first)
    for start in range(0, target.outputs, step):
        stop = min(start + step, target.outputs)
        part = rounded(matrix[start:stop].to(target.device, torch.float32), whole, None if largest is None else largest[start:stop])
        copy(target.rows(start, stop), cut_inputs(part, here, target.group))
