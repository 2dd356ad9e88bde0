"""A contiguous KV cache: one slot a sequence, every slot as long as the longest."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.model.spec import ModelSpec


class KVCache:
    """Keys and values of all layers, each (slots, kv_heads, length, head_size) a layer.

    The memory is taken at construction; raises torch.OutOfMemoryError (or RuntimeError on the CPU) if there is too little.
    """

    def __init__(self, spec: ModelSpec, slots: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, slots, spec.kv_heads, length, spec.head_size)
        # Zeros, not empty memory: a masked key still meets the softmax's zero weight, and 0 x NaN would be NaN.
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.slots = slots
        self.length = length

    @staticmethod
    def bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
        """Bytes that one token of context takes over all layers."""
        return 2 * spec.layers * spec.kv_size * dtype.itemsize

    def write(self, layer: int, slots: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        """Stores key and value (tokens, kv_heads, head_size) at each token's slot and position, int64 (tokens,)."""
        self.keys[layer, slots, :, positions] = key
        self.values[layer, slots, :, positions] = value

    def write_span(self, layer: int, slots: slice, positions: slice, key: Tensor, value: Tensor) -> None:
        """Stores key and value (slots, kv_heads, positions, head_size): a plain copy, where scattering token by token is slow."""
        self.keys[layer, slots, :, positions] = key
        self.values[layer, slots, :, positions] = value

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of one slot into another."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]
