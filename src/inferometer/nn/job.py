"""What a loader has to do: which part of which checkpoint tensor goes where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.checkpoint import Family, Piece
from inferometer.model.parameters import parameters
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.layouts import rows_of
from inferometer.nn.source import Extent


@dataclass(frozen=True, slots=True)
class Job:
    """Rows of a parameter that a checkpoint tensor, or a part of it, fills.

    outputs, inputs: which of its own it is, as the checkpoint orders them; None for all.
    """

    parameter: str
    rows: Tensor | QuantWeight
    piece: Piece
    outputs: range | None = None
    inputs: range | None = None

    @property
    def extent(self) -> Extent | None:
        """Where the part lies in the tensor; None for all of it."""
        return self.extent_of(self.inputs)

    def extent_of(self, inputs: range | None) -> Extent | None:
        """The same for other inputs."""
        if self.outputs is None and inputs is None:
            return None
        shape = self.piece.shape
        outputs = (0, rows_of(self.piece)) if self.outputs is None else (self.outputs.start, self.outputs.stop)
        if len(shape) == 1:
            return (outputs,)
        turned = self.piece.layout == "columns"
        columns = (0, shape[0] if turned else shape[1]) if inputs is None else (inputs.start, inputs.stop)
        return (columns, outputs) if turned else (outputs, columns)


def jobs(targets: Mapping[str, Tensor | QuantWeight], spec: ModelSpec, family: Family, shard: Shard) -> Iterator[Job]:
    """All that fills `targets`, by parameter name. What holds nothing on this rank is set to zero at once."""
    pieces = family.pieces(spec)
    if shard.count == 1:
        for parameter, target in targets.items():
            row = 0
            for piece in pieces[parameter]:
                stop = row + rows_of(piece)
                yield Job(parameter, _rows(target, row, stop), piece)
                row = stop
            assert row == target.shape[0], f"the pieces of {parameter} fill {row} of {target.shape[0]} rows"
        return
    shapes = {parameter.name: parameter.shape for parameter in parameters(spec)}
    for parameter, target in targets.items():
        yield from _part(parameter, target, shapes[parameter], pieces[parameter], spec, shard)


def _part(
    parameter: str, target: Tensor | QuantWeight, shape: tuple[int, ...], pieces: tuple[Piece, ...], spec: ModelSpec, shard: Shard
) -> Iterator[Job]:
    cut = shard.cut(spec, parameter, shape)
    if cut.summed and len(shape) == 1 and shard.rank > 0:
        assert isinstance(target, Tensor)
        target.zero_()
        return
    filled = 0
    for run in cut.rows:
        first = 0
        for piece in pieces:
            last = first + rows_of(piece)
            if piece.layout == "heads":
                # Queries, keys and values of a head lie together: those of the rank's heads are one part, whose rows are all there are.
                if filled == 0:
                    each = 3 * spec.head_size
                    own = range(shard.rank * target.shape[0], shard.rank * target.shape[0] + target.shape[0])
                    assert own.start % each == own.stop % each == 0
                    yield Job(parameter, target, piece, own, cut.columns)
                    filled = target.shape[0]
            else:
                own = range(max(run.start, first) - first, min(run.stop, last) - first)
                if own:
                    whole = own == range(last - first)
                    yield Job(parameter, _rows(target, filled, filled + len(own)), piece, None if whole else own, cut.columns)
                    filled += len(own)
            first = last
    assert filled + cut.padding == target.shape[0], f"the pieces of {parameter} fill {filled} of {target.shape[0]} rows"
    if cut.padding:
        behind = _rows(target, filled, filled + cut.padding)
        for tensor in behind.tensors if isinstance(behind, QuantWeight) else (behind,):
            tensor.zero_()


def _rows(target: Tensor | QuantWeight, start: int, stop: int) -> Tensor | QuantWeight:
    return target.rows(start, stop) if isinstance(target, QuantWeight) else target[start:stop]
