"""Opens a model's weights and fills a transformer with them, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from inferometer.errors import ModelError, UserError
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.checkpoint import Family
from inferometer.model.description import ModelDescription, with_weights
from inferometer.model.families import family as family_named
from inferometer.model.quantisation import read_quantisation
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.cutting import round_cut, whole_groups
from inferometer.nn.formats.layout import Layouts, copy
from inferometer.nn.formats.rounding import round_into
from inferometer.nn.formats.stored import QuantisedSource
from inferometer.nn.gguf import GgufSource
from inferometer.nn.job import Job, jobs
from inferometer.nn.layouts import outputs_to_parameter, to_parameter
from inferometer.nn.names import resolve
from inferometer.nn.safetensors import SafetensorsSource
from inferometer.nn.source import CheckpointSource, Extent
from inferometer.nn.torch_bin import TorchBinSource

if TYPE_CHECKING:
    from inferometer.nn.transformer import Transformer

_CANDIDATES: Final = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_DTYPES: Final[Mapping[str, torch.dtype]] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def open_source(description: ModelDescription, *, weights: str = "auto", seed: int = 0) -> CheckpointSource:
    """The weights of a described model: `weights` is "auto" (its files, looked for if need be) or "dummy" (random, from `seed`).

    Raises UserError for another value; ModelError where the weights cannot be had or are damaged.
    """
    if weights == "dummy":
        stored = description.config.get("dtype") or description.config.get("torch_dtype")
        dtype = _DTYPES.get(str(stored).removeprefix("torch."))
        return DummySource(description.spec, family_named(description.spec.family), seed=seed, dtype=dtype)
    if weights != "auto":
        raise UserError(f"--weights must be auto or dummy, not {weights!r}")
    path = with_weights(description).path
    if path is None:
        raise ModelError(f"{description.name}: no weights are here; pass a folder with them as MODEL, or --weights dummy")
    source, how = open_checkpoint(path), read_quantisation(description.config, description.name)
    if how is None or isinstance(source, GgufSource):
        return source
    if not isinstance(source, SafetensorsSource):
        raise ModelError(f"{path}: weights of {how.method} are read from safetensors files only; convert them")
    kind = family_named(description.spec.family)
    transposed = any(piece.layout == "columns" for pieces in kind.pieces(description.spec).values() for piece in pieces)
    return QuantisedSource(source, how, transposed=transposed)


def open_checkpoint(path: Path) -> CheckpointSource:
    """The weights in a folder (its preferred file: safetensors before PyTorch's) or in one file, by its suffix.

    Raises ModelError, naming the path, where there are none or they are damaged.
    """
    if path.is_dir():
        path = _file_in(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.suffix == ".gguf":
        return GgufSource(path)
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return SafetensorsSource(path)
    if path.name.endswith((".bin", ".bin.index.json", ".pt", ".pth")):
        return TorchBinSource(path)
    raise ModelError(f"{path}: not a weight file; the kinds are .safetensors, .bin and .gguf")


def _file_in(folder: Path) -> Path:
    for name in _CANDIDATES:
        if (folder / name).is_file():
            return folder / name
    for pattern in ("*.safetensors", "*.gguf"):
        others = sorted(folder.glob(pattern))
        if len(others) == 1:
            return others[0]
        if others:
            raise ModelError(f"{folder}: holds {len(others)} {pattern} files and no index of them; pass one file or add the index")
    raise ModelError(f"{folder}: no weights ({', '.join(_CANDIDATES)}); fetch them, or run generate, bench or serve with --weights dummy")


def load(model: Transformer, source: CheckpointSource, family: Family, *, device: torch.device | str = "cpu") -> None:
    """Fills every parameter of `model` from `source`, in the model's dtype: of ranks that share it each reads its own part.

    Parameters on the meta device are created on `device`; the others stay where they are. Raises ModelError, naming tensors and
    file, where the two do not match (before anything is read), a tensor cannot be read, or a norm's weight is not finite.
    """
    quantised = model.quantised
    for name, parameter in list(model.named_parameters()):
        if parameter.is_meta and name not in quantised:
            owner, _, attribute = name.rpartition(".")
            created = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=device), requires_grad=False)
            setattr(model.get_submodule(owner), attribute, created)
    targets: dict[str, Tensor | QuantWeight] = {**dict(model.named_parameters()), **quantised}
    fill(targets, model.spec, source, family, model.dtype, layouts=model.layouts, ranks=model.collective)


@torch.no_grad()
def fill(
    targets: Mapping[str, Tensor | QuantWeight],
    spec: ModelSpec,
    source: CheckpointSource,
    family: Family,
    dtype: torch.dtype | None = None,
    *,
    layouts: Layouts = MappingProxyType({}),
    ranks: Collective = ALONE,
) -> None:
    """Fills tensors, by parameter name, from `source`; `targets` may be some of the parameters only, each with its full shape.

    Those in few bits are rounded from the source's own numbers (dummy ones are drawn in `dtype`, the model's). Beside the targets one
    checkpoint tensor exists at a time. ranks: that share the model; targets are then of this rank's shapes, nothing but its part is read,
    and all ranks call this for the same names. layouts: of the whole matrices in few bits, for those that ranks cut by input.
    Raises ModelError as `load` does.
    """
    shard = Shard(ranks.rank, ranks.size)
    local, names = shard.local(spec), resolve(spec, source, family)
    # By file, as a source may keep only one open; the sort keeps the order within a file.
    todo = sorted(jobs(targets, spec, family, shard), key=lambda job: source.where(names[job.piece.tensor]))
    finite: list[tuple[Job, Tensor, torch.dtype]] = []
    for job in todo:
        rows, name = job.rows, names[job.piece.tensor]
        if isinstance(rows, QuantWeight):
            if isinstance(source, QuantisedSource) and source.holds(name):
                copy(rows, outputs_to_parameter(_stored(source, name, job), job.piece, local))
            else:
                _round(source, name, job, dtype or torch.float32, local, layouts, ranks)
            finite.append((job, rows.scale.isfinite().all(), rows.scale.dtype))
            continue
        rows.copy_(to_parameter(_read(source, name, job.extent, rows.device, rows.dtype), job.piece, local))
        if job.parameter.endswith("norm.weight"):
            finite.append((job, rows.isfinite().all(), rows.dtype))
    # Norms and scales alone: few numbers, yet where a file is garbage or the dtype too narrow they show it. Looked at last: one wait,
    # not many.
    bad = [(job, narrow) for job, good, narrow in finite if not good]
    if bad:
        name, kind = names[bad[0][0].piece.tensor], str(bad[0][1]).removeprefix("torch.")
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise ModelError(f"{source.where(name)}: the tensor {name}{more} holds numbers that are not finite in {kind}")


def _read(source: CheckpointSource, name: str, extent: Extent | None, device: torch.device, dtype: torch.dtype) -> Tensor:
    return source.read(name, device, dtype) if extent is None else source.read_part(name, extent, device, dtype)


def _stored(source: QuantisedSource, name: str, job: Job) -> QuantWeight:
    """A matrix as it is stored, or the job's part of it."""
    if job.extent is None:
        return source.quantised(name)
    assert isinstance(job.rows, QuantWeight)
    return source.quantised_part(name, job.outputs, job.inputs, job.rows.group)


def _round(
    source: CheckpointSource, name: str, job: Job, dtype: torch.dtype, local: ModelSpec, layouts: Layouts, ranks: Collective
) -> None:
    target = job.rows
    assert isinstance(target, QuantWeight)
    finest = source.finest(dtype)
    if job.inputs is None:
        round_into(target, to_parameter(_read(source, name, job.extent, target.device, finest), job.piece, local))
        return
    whole, shape = layouts[job.parameter], job.piece.shape
    inputs = whole_groups(job.inputs, whole.group, shape[0] if job.piece.layout == "columns" else shape[1])
    exact = to_parameter(_read(source, name, job.extent_of(inputs), target.device, finest), job.piece, local)
    round_cut(target, exact, whole, job.inputs, inputs.start, ranks)
