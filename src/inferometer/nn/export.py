"""The way back: a transformer's weights, or any checkpoint's, under the names and layouts that transformers uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from inferometer.errors import ModelError
from inferometer.model.checkpoint import Family
from inferometer.model.spec import ModelSpec
from inferometer.nn.layouts import rows_of, to_checkpoint
from inferometer.nn.names import resolve
from inferometer.nn.source import CheckpointSource


def export(parameters: Mapping[str, Tensor], spec: ModelSpec, family: Family) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint name, tensor) for all of `parameters`, by parameter name; views of them where the layout allows."""
    pieces = family.pieces(spec)
    for name, parameter in parameters.items():
        row = 0
        for piece in pieces[name]:
            rows = rows_of(piece)
            yield piece.tensor, to_checkpoint(parameter.detach()[row : row + rows], piece, spec)
            row += rows


def hf_state(
    source: CheckpointSource, spec: ModelSpec, family: Family, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """(today's Hugging Face name, tensor) for every tensor that the model needs, read one at a time from any source.

    Do not write to the tensors. Raises ModelError as nn.load.load does.
    """
    for ours, theirs in resolve(spec, source, family).items():
        yield ours, source.read(theirs, device, dtype)


@torch.no_grad()
def fill_hf(model: nn.Module, source: CheckpointSource, spec: ModelSpec, family: Family) -> None:
    """Fills a model of the transformers package, built from the same configuration and not on the meta device, in place.

    Its heads must be tied already if they are to be. Raises ModelError where the two differ in a parameter's name or shape.
    """
    prefix = family.optional_prefix
    targets = dict(model.named_parameters())  # a tied parameter appears once
    unfilled = dict.fromkeys(targets)
    for ours, theirs in resolve(spec, source, family).items():
        # The model may be the bare base model, whose names lack the prefix, or a larger one that carries it.
        name = next((n for n in (ours, ours.removeprefix(prefix), prefix + ours) if n in targets), None)
        if name is None or targets[name].shape != source.tensors()[theirs]:
            raise ModelError(f"{type(model).__name__} has no parameter {ours} of shape {tuple(source.tensors()[theirs])}")
        targets[name].copy_(source.read(theirs, targets[name].device, targets[name].dtype))
        del unfilled[name]
    if unfilled:
        raise ModelError(
            f"{source.where('')}: has nothing for {len(unfilled)} parameters of {type(model).__name__}: {next(iter(unfilled))}"
        )
