"""A cache of one layer's memory for all layers: what a sweep takes is measured with it."""

from __future__ import annotations

import pytest
import torch

from inferometer.model.description import describe
from inferometer.nn.cache import PagedCache

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_all_layers_lie_in_the_memory_of_one(dtype: torch.dtype) -> None:
    spec = describe("opt-125m", config_only=True).spec
    whole, shared = PagedCache(spec, 3, 4, CPU, dtype), PagedCache.of_one_layer(spec, 3, 4, CPU, dtype)
    assert shared.nbytes * spec.layers == whole.nbytes
    for ours, theirs in ((shared.keys, whole.keys), (shared.values, whole.values)):
        assert (ours.shape, ours[1].is_contiguous()) == (theirs.shape, True)
    first, last = shared.layer(0), shared.layer(spec.layers - 1)
    first[0].fill_(3)
    assert (last[0] == 3).all()
    assert (last[1] == 0).all()
    if whole.key_scales is not None:
        assert shared.key_scales is not None
        assert shared.key_scales.shape == whole.key_scales.shape
    held = shared.held("keys", 2, slice(0, 3), torch.float32)
    assert held.shape == whole.held("keys", 2, slice(0, 3), torch.float32).shape
