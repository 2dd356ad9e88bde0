"""Writes a model in few bits to a folder, rounded to the nearest or to what a text asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from inferometer.engine.device import resolve_device
from inferometer.engine.llm import LLM
from inferometer.errors import UserError
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.description import describe, with_weights
from inferometer.model.families import family
from inferometer.model.formats import WeightFormat
from inferometer.model.scratch import remove_abandoned
from inferometer.nn.formats.calibration import calibrate
from inferometer.nn.formats.folder import Matrices, QuantisedFolder, check_free, claimed, matrices_to_nearest
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.stored import QuantisedSource
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted

WINDOWS, WINDOW = 32, 512


class Progress(Protocol):
    """Shows how far something is."""

    def start(self, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was written. model: its name. calibration_tokens: of the text that was calibrated on, None without one."""

    model: str
    calibration_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """The matrices, and the norms that are no longer as they were; by parameter name, on the CPU. tokens: of the text that they saw."""

    matrices: dict[str, QuantWeight]
    norms: dict[str, Tensor]
    tokens: int


def quantize(
    model: str | None,
    form: WeightFormat,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    text: str | None = None,
    windows: int = WINDOWS,
    device: str = "auto",
    progress: Callable[[str, str], Progress],
    say: Callable[[str], None] = lambda line: None,
) -> Quantised:
    """Writes the folder and returns what it is of.

    dtype: of all that stays plain, None for as it is stored. text: to calibrate on `device` with, `windows` pieces of it. progress: from
    a label and a unit. say: is told in a line of what a killed run had left beside the folder, which goes. Raises UserError, one line, for
    whatever cannot be read, calibrated or written, and at once where another run is writing the folder.
    """
    check_free(folder)
    remove_abandoned(folder, say)
    description = with_weights(describe(model))
    kind = family(description.spec.family)
    with closing(open_source(description)) as source, ExitStack() as held:
        if isinstance(source, QuantisedSource):
            raise UserError(f"{description.name} is in few bits already; use the checkpoint before quantisation")
        spec = fitted(description.spec, source, kind)
        written = QuantisedFolder(description, source, spec, kind, form, dtype)
        matrices = matrices_to_nearest(source, spec, kind, form)
        replaced: dict[str, Tensor] = {}
        seen: int | None = None
        held.enter_context(claimed(folder))
        if text is not None:
            with closing(progress("calibrate", "layer")) as bar:
                found = _calibrated(model, form, text, windows, device, bar)
            matrices, replaced, seen = _first_of(found.matrices, matrices), found.norms, found.tokens
        with closing(progress("quantize", "tensor")) as bar:
            bar.start(written.tensors)
            written.write(folder, matrices, bar.advance, replaced=replaced)
    return Quantised(description.name, seen)


def _first_of(calibrated: Mapping[str, QuantWeight], nearest: Matrices) -> Matrices:
    """What was calibrated; else, which is the head, rounded to the nearest."""

    def matrix(parameter: str) -> QuantWeight:
        found = calibrated.get(parameter)
        return nearest(parameter) if found is None else found

    return matrix


def _calibrated(model: str | None, form: WeightFormat, text: str, count: int, device_name: str, bar: Progress) -> _Calibrated:
    """By `count` windows of the text at most."""
    device = resolve_device(device_name)
    llm = LLM(model, device=str(device), dtype="float32" if device.type == "cpu" else "auto")
    if llm.spec.encoder:
        raise UserError(f"--calibrate predicts text, and {llm.spec.name} is an encoder; leave it out")
    if llm.tokenizer is None:
        raise UserError(f"{llm.spec.name} has no tokenizer for --calibrate; put its files into the model's folder")
    tokens = llm.tokenizer.encode(text)
    window = WINDOW if llm.context_limit is None else min(WINDOW, llm.context_limit)
    if len(tokens) < window:
        raise UserError(f"--calibrate: the text has {_tokens(len(tokens))}, and at least {window} are needed; give a longer one")
    windows = [tokens[start : start + window] for start in range(0, len(tokens), window)][:count]
    matrices: dict[str, QuantWeight] = {}
    norms: dict[str, Tensor] = {}
    bar.start(llm.spec.layers)
    for layer in calibrate(llm.model, windows, QuantLayout.of(form, torch.device("cpu")), bar.advance):
        matrices |= {name: weight.to("cpu") for name, weight in layer.matrices.items()}
        norms |= {name: norm.cpu() for name, norm in layer.norms.items()}
    return _Calibrated(matrices, norms, sum(map(len, windows)))


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count != 1)}"
