"""One op of a step: its shape, what it computes and what it moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

OpKind = Literal["embedding", "norm", "gemm", "rotary", "kv_write", "attention", "activation", "residual", "logits", "loss", "collective"]
Unit = Literal["tensor", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An operation that a step runs `count` times, once a layer or once in all; every figure is for one of them, on one device.

    shape: (m, n, k) of a matrix product with m rows of activations; (queries, pairs, head_size) of an attention product for one
    head; (rows, width) else.
    groups: products of that shape which one kernel does side by side, as of a layer's experts; flops and bytes are of all of them.
    flops: a multiply-add is two; exponentials and the like count one. Ops of unit "tensor" are matrix products, and their FLOPs are
    exactly what torch's counter counts; ops of unit "vector" are the rest, which it does not count.
    bytes_read, bytes_written: compulsory traffic to device memory. Compulsory is what no implementation avoids: every weight that
    the step uses once, the KV of the context once, new KV once, token ids in, logits and losses out. What passes from op to op is
    assumed to stay on chip (perfect fusion) and costs nothing here.
    activation_bytes: what an implementation without fusion moves beside that, reading the op's inputs from memory and writing its
    outputs back.
    weight_bytes, kv_bytes: the parts of the compulsory traffic that are weights, and KV read or written.
    collective_bytes: what each device must send: 2 (n - 1) / n of an all-reduce's payload, n - 1 shards of an all-gather's; of logits,
    n - 1 times what is wanted of them, though a stack may gather them whole.
    """

    kind: OpKind
    name: str
    shape: tuple[int, ...]
    unit: Unit
    dtype: str
    count: int = 1
    groups: int = 1
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    collective_bytes: int = 0

    @property
    def bytes_moved(self) -> int:
        """Compulsory traffic, both ways."""
        return self.bytes_read + self.bytes_written


def tensor_flops(ops: Iterable[Op]) -> int:
    """FLOPs of all matrix products, which are what torch's own counter counts."""
    return sum(op.count * op.flops for op in ops if op.unit == "tensor")


def compulsory_bytes(ops: Iterable[Op]) -> int:
    """Bytes that the step cannot avoid moving to or from one device's memory."""
    return sum(op.count * op.bytes_moved for op in ops)


def weight_bytes(ops: Iterable[Op]) -> int:
    """Bytes of weights that the step reads on one device."""
    return sum(op.count * op.weight_bytes for op in ops)


def kv_bytes(ops: Iterable[Op]) -> int:
    """Bytes of keys and values that the step reads and writes on one device."""
    return sum(op.count * op.kv_bytes for op in ops)
