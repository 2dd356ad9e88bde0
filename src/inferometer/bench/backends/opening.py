"""What a backend is opened with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch

from inferometer.bench.backends.request import BenchRequest
from inferometer.engine.memory import check_weights
from inferometer.model.description import ModelDescription
from inferometer.model.families import family
from inferometer.model.spec import ModelSpec
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted
from inferometer.nn.source import CheckpointSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request with its model described, and its device and number format resolved: the same for every backend of a request."""

    request: BenchRequest
    description: ModelDescription
    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """As --dtype has it."""
        return str(self.dtype).removeprefix("torch.")

    @contextmanager
    def source(self) -> Iterator[tuple[CheckpointSource, ModelSpec]]:
        """The weights, the same for every backend, and the spec that fits them. Raises MemoryError where the device cannot hold them."""
        with closing(open_source(self.description, weights=self.request.weights, seed=self.request.seed)) as source:
            spec = fitted(self.description.spec, source, family(self.description.spec.family))
            check_weights(spec, self.device, self.dtype)
            yield source, spec
