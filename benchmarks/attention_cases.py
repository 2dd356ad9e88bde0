"""What `benchmarks/attention_kernels.py` times: contexts and prompts of models, with the bytes or FLOPs that they ask for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Decode:
    """One query token for each context."""

    name: str
    heads: int
    kv_heads: int
    head_size: int
    contexts: tuple[int, ...]

    @property
    def bytes(self) -> int:
        rows = len(self.contexts)
        return DTYPE.itemsize * self.head_size * (2 * sum(self.contexts) * self.kv_heads + 2 * rows * self.heads)


@dataclass(frozen=True)
class Prefill:
    """rows: (query tokens, context)."""

    name: str
    heads: int
    kv_heads: int
    head_size: int
    rows: tuple[tuple[int, int], ...]
    biased: bool = False

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(context for _, context in self.rows)

    @property
    def flops(self) -> int:
        """Of the keys that queries see: two products of head_size multiplications and additions."""
        seen = sum(count * context - count * (count - 1) // 2 for count, context in self.rows)
        return 4 * seen * self.heads * self.head_size


def ragged(rows: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Contexts spread evenly over the range, in an order without pattern."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    return tuple(shortest + i * (longest - shortest) // (rows - 1) for i in order)


CASES: tuple[Decode | Prefill, ...] = (
    Decode("decode opt-6.7b 250 rows of 50..1500", 32, 32, 128, ragged(250, 50, 1500)),
    Decode("decode opt-1.3b 256 rows of 530", 32, 32, 64, (530,) * 256),
    Decode("decode llama-8b 128 rows of 50..1500", 32, 8, 128, ragged(128, 50, 1500)),
    Decode("decode doc004 1024 rows of 10..110", 16, 16, 128, ragged(1024, 10, 110)),
    Decode("decode doc004 256 rows of 10..110", 16, 16, 128, ragged(256, 10, 110)),
    Decode("decode doc004 64 rows of 10..110", 16, 16, 128, ragged(64, 10, 110)),
    Decode("decode llama-8b 512 rows of 10..110", 32, 8, 128, ragged(512, 10, 110)),
    Decode("decode 512 rows of 100..400", 16, 16, 128, ragged(512, 100, 400)),
    Decode("decode opt-1.3b 512 rows of 10..110", 32, 32, 64, ragged(512, 10, 110)),
    Decode("decode 16 rows of 50..1500", 32, 32, 128, ragged(16, 50, 1500)),
    Decode("decode 1 row of 128", 16, 16, 128, (128,)),
    Decode("decode 1 row of 512", 16, 16, 128, (512,)),
    Decode("decode 1 row of 2048", 32, 32, 64, (2048,)),
    Decode("decode llama-8b 1 row of 8192", 32, 8, 128, (8192,)),
    Decode("decode few: doc004 1 row of 544", 16, 16, 128, (544,)),
    Decode("decode few: bloomz-7b1 1 row of 1032", 32, 32, 128, (1032,)),
    Decode("decode few: bloomz-7b1 4 rows of 1032", 32, 32, 128, (1032,) * 4),
    Decode("decode few: half of bloomz-7b1 4 rows of 1032", 16, 16, 128, (1032,) * 4),
    Decode("decode few: llama-8b 1 row of 544", 32, 8, 128, (544,)),
    Decode("decode few: llama-8b 1 row of 1856", 32, 8, 128, (1856,)),
    Prefill("prefill 16 x 1024, heads of 64", 32, 32, 64, ((1024, 1024),) * 16),
    Prefill("prefill 16 x 1024, heads of 128", 32, 32, 128, ((1024, 1024),) * 16),
    Prefill("prefill 4 x 512 behind 1024", 32, 32, 128, ((512, 1536),) * 4),
    Prefill("prefill llama-8b 4 x 512 behind 1024", 32, 8, 128, ((512, 1536),) * 4),
    Prefill("prefill 8 x 1024, ALiBi", 32, 32, 128, ((1024, 1024),) * 8, biased=True),
)
