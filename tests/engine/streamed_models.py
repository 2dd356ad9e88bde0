"""Models of which all layers stay or some come and go, with the same weights, and the worst courier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from inferometer.engine.residency.courier import Arrival, deliver
from inferometer.engine.residency.delivery import Delivery
from inferometer.engine.residency.disk_file import DiskSpace
from inferometer.engine.residency.homes import LayerHomes
from inferometer.engine.residency.link import MemoryLink
from inferometer.engine.residency.load import load_streamed
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.placement import Placement, share
from inferometer.model.spec import ModelSpec
from inferometer.nn.batch import prompt_batch
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.layout import Layouts
from inferometer.nn.load import load
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from tiny_models import tiny_model

CPU = torch.device("cpu")
LAYERS = {"llama": "num_hidden_layers", "opt": "num_hidden_layers", "bert": "num_hidden_layers"}
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9], [7]]


class Poisoning:
    """The worst courier: spoils a slot at once and fills it no earlier than somebody waits for the layer."""

    def __init__(self, homes: LayerHomes) -> None:
        self._homes, self._link = homes, MemoryLink()
        self.brought: Counter[int] = Counter()

    def bring(self, delivery: Delivery) -> Arrival:
        delivery.slot.fill_(0xFF)  # NaN, in every floating type
        return _Late(self, delivery)

    def close(self) -> None:
        pass

    def fill(self, delivery: Delivery) -> None:
        self.brought[delivery.slot.data_ptr()] += 1
        deliver(delivery, self._link, self._homes.reader)


class _Late:
    def __init__(self, courier: Poisoning, delivery: Delivery) -> None:
        self._courier, self._delivery = courier, delivery

    def hold(self) -> None:
        self._courier.fill(self._delivery)


def spec_of(folder: Path, kind: str, layers: int = 2) -> ModelSpec:
    """A small model's of so many layers."""
    return describe(str(tiny_model(folder, kind, **{LAYERS.get(kind, "n_layer"): layers})), config_only=True).spec


def resident(spec: ModelSpec, quantised: Layouts | None = None, numerics: Numerics = Numerics.FASTEST) -> Transformer:
    """All layers stay."""
    model = Transformer(spec, CPU, torch.float32, numerics, quantised)
    load(model, DummySource(spec, family(spec.family), seed=4), family(spec.family))
    return model


def streamed(
    spec: ModelSpec,
    fraction: float,
    *,
    slots: int = 2,
    disk: float = 0.0,
    folder: Path | None = None,
    quantised: Layouts | None = None,
    numerics: Numerics = Numerics.FASTEST,
) -> Transformer:
    """fraction: of the layers' bytes, which come and go. disk: the part of those that lies in `folder`."""

    def place(sizes: Sequence[int]) -> Placement:
        comes = share(sum(sizes), fraction)
        return Placement.of(sizes, streamed_bytes=comes, disk_bytes=share(comes, disk), slots=slots)

    source = DummySource(spec, family(spec.family), seed=4)
    where = None if folder is None else DiskSpace(folder)
    kinds = {"device": CPU, "dtype": torch.float32, "numerics": numerics, "quantised": quantised, "disk": where}
    return load_streamed(spec, source, family(spec.family), place, **kinds)


def poisoned(model: Transformer) -> Poisoning:
    """Its courier, now the worst."""
    residency = model.residency
    assert isinstance(residency, StreamedLayers)
    residency._courier.close()
    residency._courier = courier = Poisoning(residency._homes)
    return courier


@torch.inference_mode()
def states(model: Transformer) -> Tensor:
    """What a sweep over the prompts gives."""
    return model.sweep(prompt_batch(PROMPTS, CPU))


def several(model: Transformer) -> None:
    """Sweeps beyond what was brought ahead."""
    for _ in range(3):
        states(model)
