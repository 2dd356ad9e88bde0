"""The layouts of checkpoint tensors, both ways."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.checkpoint import Piece
from inferometer.model.spec import ModelSpec


def rows_of(piece: Piece) -> int:
    """How many rows of the parameter `piece` fills."""
    return piece.shape[1] if piece.layout == "columns" else piece.shape[0]


def to_parameter(tensor: Tensor, piece: Piece, spec: ModelSpec) -> Tensor:
    """A tensor of the checkpoint, of shape `piece.shape`, as rows of the parameter; a view where that is possible."""
    if piece.layout == "columns":
        return tensor.t()
    if piece.layout == "heads":
        return tensor.reshape(spec.heads, 3, spec.head_size, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
    return tensor


def outputs_to_parameter(weight: QuantWeight, piece: Piece, spec: ModelSpec) -> QuantWeight:
    """A matrix in few bits, whose outputs are in the checkpoint's order, with those of the parameter."""
    if piece.layout != "heads":
        return weight
    return weight.picked(to_parameter(torch.arange(weight.outputs, device=weight.device), piece, spec))


def outputs_to_checkpoint(weight: QuantWeight, piece: Piece, spec: ModelSpec) -> QuantWeight:
    """The inverse."""
    if piece.layout != "heads":
        return weight
    return weight.picked(to_checkpoint(torch.arange(weight.outputs, device=weight.device), piece, spec))


def to_checkpoint(rows: Tensor, piece: Piece, spec: ModelSpec) -> Tensor:
    """The inverse: rows of the parameter as the checkpoint stores them."""
    if piece.layout == "columns":
        return rows.t()
    if piece.layout == "heads":
        return rows.reshape(3, spec.heads, spec.head_size, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
    return rows
