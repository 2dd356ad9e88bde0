"""A model in few bits as a folder that loads like any other: config.json says the format, one safetensors file holds the weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.errors import ModelError, RunError, UserError
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.checkpoint import Family, Piece
from inferometer.model.description import ModelDescription
from inferometer.model.formats import WeightFormat
from inferometer.model.parameters import head_matrix
from inferometer.model.quantisation import VERSION
from inferometer.model.scratch import FULL, is_being_made, scratch_beside
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.layout import format_layouts
from inferometer.nn.formats.rounding import round_into
from inferometer.nn.formats.stored_part import HEAD_SCALE
from inferometer.nn.formats.writer import Shapes, write_safetensors
from inferometer.nn.layouts import outputs_to_checkpoint, rows_of, to_parameter
from inferometer.nn.names import resolve
from inferometer.nn.source import CheckpointSource
from inferometer.text.load import load_tokenizer
from inferometer.text.tokenizer import LibraryTokenizer

WEIGHTS: Final = "model.safetensors"
_CPU: Final = torch.device("cpu")
_KEPT: Final = ("*.json", "*.txt", "*.jinja", "*.model", "README.md", "LICENSE*")
"""Of the folder that the model comes from: what tokenizers, chat templates and generation need."""
_DROPPED: Final = ("config.json", "*.index.json")

Matrices = Callable[[str], QuantWeight]
"""By a parameter's name, its matrix in few bits."""


def matrices_to_nearest(source: CheckpointSource, spec: ModelSpec, family: Family, form: WeightFormat) -> Matrices:
    """Every matrix rounded to its nearest, as loading the model with this format would."""
    names, pieces, kinds = resolve(spec, source, family), family.pieces(spec), format_layouts(spec, form, _CPU)

    def matrix(parameter: str) -> QuantWeight:
        parts, layout = pieces[parameter], kinds[parameter]
        first = to_parameter(source.read(names[parts[0].tensor], _CPU, torch.float32), parts[0], spec)
        weight = layout.empty(sum(map(rows_of, parts)), first.shape[1], _CPU)
        row = 0
        for piece in parts:
            read = first if piece is parts[0] else to_parameter(source.read(names[piece.tensor], _CPU, torch.float32), piece, spec)
            round_into(weight.rows(row, row + rows_of(piece)), read)
            row += rows_of(piece)
        return weight

    return matrix


class QuantisedFolder:
    """What `write` puts into a folder.

    dtype: of what stays plain; None for the type it is stored in, float32 where that is no torch type.
    """

    def __init__(
        self,
        description: ModelDescription,
        source: CheckpointSource,
        spec: ModelSpec,
        family: Family,
        form: WeightFormat,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._description, self._source, self._spec, self._form = description, source, spec, form
        self._names, self._pieces = resolve(spec, source, family), family.pieces(spec)
        self._dtype = dtype or source.dtype or torch.float32
        self._layouts, self._head = format_layouts(spec, form, _CPU), head_matrix(spec)

    @property
    def tensors(self) -> int:
        """How many tensors of the checkpoint go into it."""
        return sum(map(len, self._pieces.values()))

    def write(
        self,
        folder: Path,
        matrices: Matrices,
        advance: Callable[[], None] = lambda: None,
        *,
        replaced: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Writes the folder, which must not be there or be empty. advance: told after each tensor of the checkpoint. replaced: vectors,
        by parameter name, that are not as in the checkpoint.

        The folder appears in one step when it is whole. Raises UserError, one line, where it is in the way or has no room, and ModelError
        where the weights hold numbers with which it would not load.
        """
        _check_place(folder)
        try:
            with _appearing(folder) as scratch:
                write_safetensors(scratch / WEIGHTS, self._shapes(), self._all(matrices, replaced, advance))
                self._copy_others(scratch)
                # Last: without it the folder is no model.
                (scratch / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise _unwritten(folder, error) from None

    def _config(self) -> dict[str, Any]:
        config = dict(self._description.config)
        config["quantization_config"] = {"quant_method": "inferometer", "version": VERSION, "format": self._form.name}
        # A checkpoint may hold a head of its own though the configuration ties it.
        config["tie_word_embeddings"] = self._spec.tied_head
        if "eos_token_id" not in config and self._description.eos_token_ids:
            config["eos_token_id"] = list(self._description.eos_token_ids)
        name = str(self._dtype).removeprefix("torch.")
        for option in ("dtype", "torch_dtype"):
            if option in config:
                config[option] = name
        return config

    def _copy_others(self, scratch: Path) -> None:
        """Tokenizer, chat template and generation settings."""
        path = self._description.path
        if path is None:
            return
        if path.is_file():
            tokenizer = load_tokenizer(path)
            if isinstance(tokenizer, LibraryTokenizer):
                tokenizer.save(scratch)
            return
        for pattern in _KEPT:
            for file in path.glob(pattern):
                if file.is_file() and not any(file.match(dropped) for dropped in _DROPPED):
                    shutil.copyfile(file, scratch / file.name)

    def _shapes(self) -> Shapes:
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for parameter, pieces in self._pieces.items():
            for piece in pieces:
                if parameter not in self._layouts:
                    shapes[piece.tensor] = (piece.shape, self._dtype)
                    continue
                outputs, inputs = piece.shape[::-1] if piece.layout == "columns" else piece.shape
                empty, head = self._layouts[parameter].empty(outputs, inputs, "meta"), parameter == self._head
                shapes |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in _stored(piece, empty, head=head)}
        return shapes

    def _all(self, matrices: Matrices, replaced: Mapping[str, Tensor], advance: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
        for parameter, pieces in self._pieces.items():
            whole = matrices(parameter) if parameter in self._layouts else None
            row = 0
            for piece in pieces:
                if parameter in replaced:
                    yield piece.tensor, replaced[parameter].to(_CPU, self._dtype)
                elif whole is None:
                    plain = self._source.read(self._names[piece.tensor], _CPU, self._dtype)
                    if parameter.endswith("norm.weight"):
                        self._check_finite(piece, plain)
                    yield piece.tensor, plain
                else:
                    part = whole.rows(row, row + rows_of(piece))
                    self._check_finite(piece, part.scale)
                    yield from _stored(piece, outputs_to_checkpoint(part, piece, self._spec), head=parameter == self._head)
                    row += rows_of(piece)
                advance()

    def _check_finite(self, piece: Piece, numbers: Tensor) -> None:
        # What loading looks at: hours of writing are not to end in a folder that does not load.
        if not numbers.isfinite().all():
            name, kind = self._names[piece.tensor], str(numbers.dtype).removeprefix("torch.")
            raise ModelError(f"{self._source.where(name)}: the tensor {name} holds numbers that are not finite in {kind}")


def check_free(folder: Path) -> None:
    """Raises UserError where a folder to be written is there and not empty, is a link or a mounted disk, whose place no folder can take, is
    below a file, or is what another run is writing."""
    _check_place(folder)
    if is_being_made(folder):
        raise UserError(f"-o {folder} is being written by another run; name another folder, or wait for that run to end")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """That this run is going to write the folder, which `check_free` then says to others. Raises UserError as that does, and where nothing
    can be written there."""
    check_free(folder)
    with ExitStack() as held:
        try:
            held.enter_context(scratch_beside(folder))
        except OSError as error:
            raise _unwritten(folder, error) from None
        yield


def _unwritten(folder: Path, error: OSError) -> UserError:
    kind = RunError if error.errno in FULL else UserError
    return kind(f"-o {folder}: {error.strerror or error}; nothing is kept of it, give a folder with room that can be written")


def _check_place(folder: Path) -> None:
    if folder.is_symlink():
        raise UserError(f"-o {folder} is a link; name the folder itself, or remove it")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"-o {folder} is there already; name another folder, or remove it")
    if folder.is_mount():
        raise UserError(f"-o {folder} is where a disk is mounted; name a folder in it, such as {folder / 'model'}")
    above = next(path for path in folder.absolute().parents if path.exists())
    if not above.is_dir():
        raise UserError(f"-o {folder}: {above} is a file; name a folder elsewhere")


def _stored(piece: Piece, weight: QuantWeight, *, head: bool) -> Iterator[tuple[str, Tensor]]:
    """A matrix (outputs, inputs) of the checkpoint in this package's own format. head: one in 8 bits whatever the format."""
    yield piece.tensor, weight.data
    yield f"{piece.tensor}_{HEAD_SCALE if head else 'scale'}", weight.scale
    if weight.zero is not None:
        yield f"{piece.tensor}_zero", weight.zero
    if weight.kind == "int4":
        yield f"{piece.tensor}_shape", torch.tensor(weight.shape, dtype=torch.int64)


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place at the end, and goes if anything is raised."""
    with scratch_beside(folder) as scratch:
        yield scratch
        for path in scratch.iterdir():
            _sync(path)
        _check_place(folder)  # of two that write one folder, the last to end
        if folder.is_dir():
            folder.rmdir()
        os.rename(scratch, folder)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
