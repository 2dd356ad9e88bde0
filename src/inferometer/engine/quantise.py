"""Writing a model in few bits: read tensor by tensor and rounded to the nearest, or to what a text asks of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from inferometer.engine.device import resolve_device
from inferometer.engine.llm import LLM
from inferometer.errors import UserError
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.description import describe, with_weights
from inferometer.model.families import family
from inferometer.model.formats import WeightFormat
from inferometer.nn.formats.calibration import calibrate
from inferometer.nn.formats.folder import QuantisedFolder, check_free, matrices_to_nearest
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.stored import QuantisedSource
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted

WINDOW: Final = 512
"""Tokens of a piece of text to calibrate with."""


class Progress(Protocol):
    """Is told how many parts there are, and of each that is done."""

    def start(self, total: int) -> None: ...

    def advance(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Calibration:
    """text: such as the model will meet. windows: pieces of WINDOW tokens to take of it. device: where, by name. bar: of layers."""

    text: str
    windows: int
    device: str
    bar: Progress


def quantise(model: str | None, folder: Path, form: WeightFormat, dtype: str, calibration: Calibration | None, bar: Progress) -> str:
    """Writes the folder, which must not be there, and returns the model's name. dtype: of what stays plain, "auto" as it is stored.

    Raises UserError, one line, for a model that has few bits already, a folder in the way or without room, and a text that is too short.
    """
    check_free(folder)
    description = with_weights(describe(model))
    kind = family(description.spec.family)
    with closing(open_source(description)) as source:
        if isinstance(source, QuantisedSource):
            raise UserError(f"{description.name} is in few bits already; use the checkpoint before quantisation")
        spec = fitted(description.spec, source, kind)
        written = QuantisedFolder(description, source, spec, kind, form, None if dtype == "auto" else getattr(torch, dtype))
        matrices = matrices_to_nearest(source, spec, kind, form)
        replaced: dict[str, Tensor] = {}
        if calibration is not None:
            found, replaced = _calibrated(model, form, calibration)
            matrices = found.__getitem__
        bar.start(written.tensors)
        written.write(folder, matrices, bar.advance, replaced=replaced)
    return description.name


def _calibrated(model: str | None, form: WeightFormat, asked: Calibration) -> tuple[dict[str, QuantWeight], dict[str, Tensor]]:
    """The matrices, and the norms that are no longer as they were; by parameter name, on the CPU."""
    device = resolve_device(asked.device)
    llm = LLM(model, device=str(device), dtype="float32" if device.type == "cpu" else "auto")
    if llm.spec.encoder:
        raise UserError(f"--calibrate predicts text, and {llm.spec.name} is an encoder; leave it out")
    if llm.tokenizer is None:
        raise UserError(f"{llm.spec.name} has no tokenizer for --calibrate; put its files into the model's folder")
    tokens = llm.tokenizer.encode(asked.text)
    window = WINDOW if llm.context_limit is None else min(WINDOW, llm.context_limit)
    windows = [tokens[start : start + window] for start in range(0, len(tokens), window)][: asked.windows]
    if len(tokens) < 2:
        raise UserError("--calibrate: the text has fewer than two tokens; give a longer one")
    matrices: dict[str, QuantWeight] = {}
    norms: dict[str, Tensor] = {}
    asked.bar.start(llm.spec.layers)
    for layer in calibrate(llm.model, windows, QuantLayout.of(form, torch.device("cpu")), asked.bar.advance):
        matrices |= {name: weight.to("cpu") for name, weight in layer.matrices.items()}
        norms |= {name: norm.cpu() for name, norm in layer.norms.items()}
    return matrices, norms
