"""A case, or a record of one, in the estimator's words."""

from __future__ import annotations

from typing import Any, Protocol

from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.offload import read_offload
from inferometer.model.placement import share
from inferometer.model.spec import ModelSpec


class Workload(Protocol):
    """What a case and a record of one have in common that decides what it costs."""

    @property
    def backend(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def decode_length(self) -> int | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantize(self) -> str | None: ...
    @property
    def kv_dtype(self) -> str | None: ...
    @property
    def tensor_parallel(self) -> int: ...
    @property
    def forward_only(self) -> bool: ...
    @property
    def loss(self) -> bool: ...
    @property
    def offload(self) -> str | None: ...
    @property
    def percent(self) -> str | None: ...
    @property
    def host_memory_limit(self) -> int | None: ...
    @property
    def disk(self) -> bool: ...


def reads_disk(work: Workload, spec: ModelSpec, formats: Formats) -> bool:
    """Whether weights come from a disk with every sweep: nobody knows how fast, so that no time is expected.

    What the host's memory has room for, where no limit is set, is not known here: then none do.
    """
    asked = read_offload(work.offload, work.percent)
    if asked.disk is not None or not work.disk or work.host_memory_limit is None:
        return bool(asked.disk)
    return share(spec.layers * layer_weight_bytes(spec, formats), asked.weights) > work.host_memory_limit


def estimator_arguments(work: Workload, stack: str) -> dict[str, Any]:
    """Arguments of `estimate` by name, but for model, device and order."""
    return {
        "batch_size": work.batch_size,
        "sequence_length": work.prompt_length,
        "decode_length": None if work.decode_length is None else work.steps + 1,
        "dtype": work.dtype,
        "quantize": work.quantize,
        "kv_dtype": work.kv_dtype or "auto",
        "tensor_parallel": work.tensor_parallel,
        "stack": stack,
        "forward_only": work.forward_only,
        "loss": work.loss,
        "offload": read_offload(work.offload, work.percent).name,
    }
