"""The deepspeed backend: init_inference around transformers' module, with DeepSpeed's own kernels where it has them for the family."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.bench.backends.hf import MODERN, HFBackend
from inferometer.bench.backends.hf_batch import Batch
from inferometer.bench.backends.opening import Opening
from inferometer.model.spec import ModelSpec
from inferometer.nn.source import CheckpointSource
from inferometer.schedule.sampling import SamplingParams

# The containers of its module_inject that families of ours have.
_INJECTED: Final = ("bert", "bloom", "gpt2", "llama", "opt")
_PLACES: Final = 1024
_ARCHITECTURES: Final = "TORCH_CUDA_ARCH_LIST"


def open_backend(opening: Opening) -> DeepSpeedBackend:
    """A transformers model of the same weights that the native engine has, given to DeepSpeed."""
    with opening.source() as (source, spec):
        return DeepSpeedBackend(opening.description.config, spec, source, opening.device, opening.dtype)


class DeepSpeedBackend(HFBackend):
    """Its kernels keep keys and values in a workspace of their own, made for the first batch that runs: every batch gets a new one.

    On the CPU, and for families without kernels, transformers' modules run as DeepSpeed wraps them; stack_version says which.
    """

    name = "deepspeed"

    def __init__(
        self, config: Mapping[str, Any], spec: ModelSpec, source: CheckpointSource, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(config, spec, source, device, dtype)
        _name_architectures_plainly()
        library: Any = import_module("deepspeed")
        self.injected = self._takes_kernels(spec, device)
        # The longest sequence that the workspace has places for; it divides what the device has left.
        places = spec.context_limit or _PLACES
        if self.injected:
            _number_layers_anew()
        self._engine = library.init_inference(
            self._model,
            tensor_parallel={"tp_size": 1},
            dtype=dtype,
            replace_with_kernel_inject=self.injected,
            max_out_tokens=places,
        )
        self._model = self._engine.module
        how = "kernel injection" if self.injected else "no kernel injection"
        self.stack_version = f"{library.__version__} {how}, transformers {self.stack_version}"

    @staticmethod
    def _takes_kernels(spec: ModelSpec, device: torch.device) -> bool:
        return device.type == "cuda" and spec.family in _INJECTED

    def prepare(self, rows: int, tokens: int) -> None:
        """Has the next batch make a workspace of its size."""
        self._release()

    def abandon(self) -> None:
        """Drops the batch and the workspace."""
        super().abandon()
        self._release()

    def close(self) -> None:
        """Drops the model."""
        self._release()
        self._engine = None
        super().close()

    def _begin(self, ids: Tensor, params: SamplingParams) -> Batch:
        if MODERN and not self.injected:
            return super()._begin(ids, params)
        return PastBatch(self._model, ids, params, None)

    def _release(self) -> None:
        if not self.injected or self._model is None:
            return
        for module in self._model.modules():
            if hasattr(module, "_should_allocate_workspace"):
                workspace = type(module).workspace
                if workspace is not None and not module._should_allocate_workspace:
                    workspace.release_workspace()
                module._should_allocate_workspace = True


def _name_architectures_plainly() -> None:
    """Of the architectures that containers have extensions compiled for, 0.19.8 reads none that is named with a letter, as 9.0a is: its
    kernels need nothing that only those have."""
    if _ARCHITECTURES in os.environ:
        os.environ[_ARCHITECTURES] = re.sub(r"(\d+\.\d+)[a-z]", r"\1", os.environ[_ARCHITECTURES])


def _number_layers_anew() -> None:
    """DeepSpeed counts the layers of a process, and the first makes the workspace of all: those of a model that is gone count no more."""
    layer: Any = import_module("deepspeed.model_implementations.transformers.ds_transformer").DeepSpeedTransformerInference
    attention: Any = import_module("deepspeed.ops.transformer.inference.ds_attention").DeepSpeedSelfAttention
    layer.layer_id, layer.workspace = 0, None
    attention.num_layers, attention._qkv_buffers = 0, []


class PastBatch(Batch):
    """A batch whose keys and values come back with every step, as transformers had them before its caches were objects."""

    _length = 0

    def _logits(self, model: Callable[..., Any], ids: Tensor) -> Tensor:
        length = ids.shape[1] + self._length
        # Given, as what would be made from the pasts depends on a layout that DeepSpeed's are not in.
        mask = torch.ones(ids.shape[0], length, dtype=torch.long, device=ids.device)
        out = model(input_ids=ids, attention_mask=mask, past_key_values=self.cache, use_cache=True)
        self.cache, self._length = out.past_key_values, length
        logits: Tensor = out.logits
        return logits
