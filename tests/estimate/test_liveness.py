"""The layers' largest moment against the tensors that are alive when the real module runs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from configs import DECODERS, ENCODERS, config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferometer.estimate.memory import activation_bytes
from inferometer.estimate.stack import STACKS
from inferometer.estimate.workload import Workload
from inferometer.model.config import read_spec
from inferometer.model.formats import Formats
from inferometer.nn.batch import prompt_batch
from inferometer.nn.transformer import Transformer

BATCH, LENGTH = 4, 40
INDEX_BYTES = BATCH * LENGTH * 8


class Peak(TorchDispatchMode):
    """The most bytes of storages alive at once among those that ops create, `known` ones aside."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._sizes:
                storage = tensor.untyped_storage()
                self._sizes[storage._cdata] = storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._drop, storage._cdata)
                self.peak = max(self.peak, self.live)
        return out

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


@pytest.mark.parametrize("key", [*DECODERS, *ENCODERS])
def test_activations_are_those_alive_in_the_real_module(key: str) -> None:
    kind, options = (DECODERS | ENCODERS)[key]
    spec = read_spec(config(kind, options).to_dict(), key)
    model = Transformer(spec, torch.device("cpu"), torch.float32)
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    batch = prompt_batch([[1] * LENGTH] * BATCH, torch.device("cpu"))
    with torch.inference_mode(), Peak(list(model.parameters())) as seen:
        model.sweep(batch)
    expected = activation_bytes(spec, Formats(dtype="float32"), STACKS["native"], Workload(batch=BATCH, length=LENGTH), cpu=True)
    # Beside activations there are index tensors, which matter only in models as small as these.
    assert expected <= seen.peak <= expected + 2 * INDEX_BYTES
