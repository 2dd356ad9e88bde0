"""The hf-compile backend: transformers with a static cache and its forward compiled, as its own generate() runs them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
import transformers
from torch import Tensor

from inferometer.bench.backends.backend import Continuation, Prompts
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.hf_batch import Batch
from inferometer.bench.backends.opening import Opening
from inferometer.schedule.sampling import SamplingParams

# Left to itself, OPT makes mask and positions from how full the cache is, which the host has to read for that in every step. BLOOM's slopes
# are as many as its mask has places, and in transformers 5.17 as there are tokens, which is too few for a cache of all places.
_MASKED: Final = ("opt", "bloom")


def open_backend(opening: Opening) -> HFCompileBackend:
    """A transformers model of the same weights that the native engine has."""
    with opening.source() as (source, spec):
        return HFCompileBackend(opening.description.config, spec, source, opening.device, opening.dtype)


class HFCompileBackend(HFBackend):
    """Prompts run eagerly, as in transformers' generate(); decode steps run compiled, on a GPU as a recorded graph.

    The cache has as many places as the batch that was prepared for can come to need, and every step attends over all of them under
    a mask: that is what a static cache costs. A batch of another size or length is compiled anew.
    """

    name = "hf-compile"
    compiler = "inductor"

    _cache: Any = None
    _room = (0, 0)
    _step: Any = None
    _given: Mapping[str, Tensor] = MappingProxyType({})

    def prepare(self, rows: int, tokens: int) -> None:
        """A cache of that size and a forward not yet compiled for it, unless the last batch was of that size too."""
        if (rows, tokens) != self._room or self._cache is None:
            self._drop_cache()
            self._room = (rows, tokens)
            self._cache = transformers.StaticCache(config=self._model.config, max_cache_len=tokens)
            # What was compiled for other sizes counts towards dynamo's limit, past which it silently runs everything eagerly.
            torch.compiler.reset()
            mode = "reduce-overhead" if self.compiler == "inductor" else None
            self._step = torch.compile(self._model.__call__, backend=self.compiler, mode=mode, dynamic=False)

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy, through the static cache and the compiled step."""
        rows, tokens = self._room
        if self._cache is None or rows != len(prompts) or tokens < len(prompts[0]) + steps:
            self.prepare(len(prompts), len(prompts[0]) + steps)
        return super().continuation(prompts, steps)

    def abandon(self) -> None:
        """Drops the batch, its cache and what was compiled for it."""
        super().abandon()
        self._drop_cache()

    def close(self) -> None:
        """Drops the model."""
        self._drop_cache()
        super().close()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights and of the cache."""
        layers = () if self._cache is None else (layer for layer in self._cache.layers if layer.is_initialized)
        cached: int = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        return self._resident + cached

    def _begin(self, ids: Tensor, params: SamplingParams) -> Batch:
        if self._cache is None or self._room[0] != len(ids):
            raise RuntimeError("a batch needs a cache prepared for it")
        self._cache.reset()
        self._given = {}
        prompts: Callable[..., Any] = self._model
        if self._model.config.model_type in _MASKED:
            # Places that are not filled yet lie after the token, where the causal mask hides them.
            self._given = {"attention_mask": torch.ones(self._room, device=self.device, dtype=torch.long)}
        if self._model.config.model_type == "bloom":
            prompts = partial(self._model, **self._given)
        if self._model.config.model_type == "opt":
            self._given |= {"position_ids": torch.full((len(ids), 1), ids.shape[1] - 1, device=self.device)}
        return Batch(self._model, ids, params, self._cache, self._compiled, prompts)

    def _invent(self, batch: Batch, tokens: int) -> None:
        for layer in batch.cache.layers:
            for places in (layer.keys, layer.values):
                places[:, :, : tokens + 1].normal_()
            layer.cumulative_length.fill_(tokens + 1)
        if "position_ids" in self._given:
            self._given["position_ids"].fill_(tokens)

    def _back(self, batch: Batch) -> None:
        batch.unstep()
        for layer in batch.cache.layers:
            layer.cumulative_length.sub_(1)
        if "position_ids" in self._given:
            self._given["position_ids"].sub_(1)

    def _compiled(self, **inputs: Any) -> Any:
        if "position_ids" in self._given:
            self._given["position_ids"].add_(1)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self._step(**inputs, **self._given)

    def _drop_cache(self) -> None:
        if self._cache is not None:
            self._cache = self._step = None
            torch.compiler.reset()  # graphs hold the cache's memory
