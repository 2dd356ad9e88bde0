"""Which tensor of a checkpoint is which: prefixes, older spellings, and what is missing, unknown or of another shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import torch

from inferometer.errors import ModelError
from inferometer.model.checkpoint import Family, Piece
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.source import CheckpointSource

_SHOWN: Final = 3


def fitted(spec: ModelSpec, source: CheckpointSource, family: Family, ranks: Collective = ALONE) -> ModelSpec:
    """The spec that the checkpoint holds, where the configuration cannot tell: without a pooler, or with a head of its own.

    A head that the configuration ties to the embedding is tied, as in transformers 5, unless the checkpoint holds both and they
    differ. ranks: each compares the rows that it will have, and all are told. Raises ModelError where either cannot be read.
    """
    spec = family.adapt(spec, source.tensors())
    found = _match(spec, source.tensors(), family, _tied(spec, family))[0]
    if len(found) < 2:
        return spec
    dtype = source.dtype or torch.float32
    if ranks.size == 1:
        embedding, head = (source.read(name, "cpu", dtype) for name in found.values())
    else:
        tokens = Shard(ranks.rank, ranks.size).tokens(spec)
        extent = (tokens.start, tokens.stop), (0, spec.embedding)
        embedding, head = (source.read_part(name, extent, "cpu", dtype) for name in found.values())
    equal = bool(ranks.minimum(int(torch.equal(embedding, head))))
    return spec if equal else replace(spec, tied_head=False)


def resolve(spec: ModelSpec, source: CheckpointSource, family: Family) -> dict[str, str]:
    """The source's name of every tensor that `family.pieces(spec)` asks for, in the order of the files that hold them.

    `spec` is the one `fitted` to the source. A tied matrix may be there as the embedding, the head, or both.
    Raises one ModelError that names the tensors, the first few and their number, and the file, if any is missing, of another
    shape, or in the checkpoint but neither asked for nor ignored.
    """
    shapes = source.tensors()
    wanted = {piece.tensor: piece for pieces in family.pieces(spec).values() for piece in pieces}
    found, unexpected = _match(spec, shapes, family, wanted)
    tied = _tied(spec, family)
    embedding = next(iter(tied), None)
    if embedding is not None and embedding not in found:
        head = _match(spec, shapes, family, tied)[0]
        if head:
            found[embedding] = next(iter(head.values()))
    missing = [name for name in wanted if name not in found]
    misshaped = [name for name, theirs in found.items() if tuple(shapes[theirs]) != wanted[name].shape]
    complaints = [
        _complaint(missing, "missing", str),
        _complaint(unexpected, "unexpected", str),
        _complaint(
            [found[name] for name in misshaped],
            "of another shape than the configuration says",
            {found[n]: f"{found[n]} {_shape(shapes[found[n]])} instead of {_shape(wanted[n].shape)}" for n in misshaped}.__getitem__,
        ),
    ]
    if missing or unexpected or misshaped:
        in_question = [*(found[name] for name in misshaped), *unexpected, *missing][0]
        raise ModelError(f"{source.where(in_question)}: {'; '.join(filter(None, complaints))}")
    # Whoever reads in this order needs one file open at a time.
    return dict(sorted(found.items(), key=lambda pair: source.where(pair[1])))


def _tied(spec: ModelSpec, family: Family) -> dict[str, Piece]:
    """The embedding and the head, by checkpoint name, of a model that ties the two; else nothing."""
    if spec.encoder or not spec.tied_head:
        return {}
    pieces = family.pieces(replace(spec, tied_head=False))
    return {piece.tensor: piece for name in ("embedding.token.weight", "head.weight") for piece in pieces[name]}


def _match(spec: ModelSpec, names: Collection[str], family: Family, wanted: Mapping[str, Piece]) -> tuple[dict[str, str], list[str]]:
    """The names in the source by the names wanted, and those that nobody wants."""
    found: dict[str, str] = {}
    unexpected: list[str] = []
    prefix = family.optional_prefix
    for theirs in names:
        name = family.rename(theirs)
        spellings = [name]
        if prefix:
            spellings += [prefix + name, *([name.removeprefix(prefix)] if name.startswith(prefix) else [])]
        ours = next((spelling for spelling in spellings if spelling in wanted), None)
        if ours is not None and ours not in found:
            found[ours] = theirs
        elif ours is not None or not any(family.ignored(spelling, spec) for spelling in spellings):
            unexpected.append(theirs)
    return found, unexpected


def _complaint(names: list[str], what: str, shown: Callable[[str], str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} {what}: {', '.join(map(shown, names[:_SHOWN]))}{more}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
