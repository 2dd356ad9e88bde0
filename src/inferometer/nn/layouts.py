"""The layouts of checkpoint tensors, both ways."""

from __future__ import annotations

from torch import Tensor

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


def to_checkpoint(rows: Tensor, piece: Piece, spec: ModelSpec) -> Tensor:
    """The inverse: rows of the parameter as the checkpoint stores them."""
    if piece.layout == "columns":
        return rows.t()
    if piece.layout == "heads":
        return rows.reshape(3, spec.heads, spec.head_size, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
    return rows
