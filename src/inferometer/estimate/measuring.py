"""The command that would measure what an estimate is asked for, of the program that its stack is."""

from __future__ import annotations

import shlex
from typing import Final

from inferometer.estimate.request import Request

BENCH: Final = "inferometer bench "
"""What this product's own command begins with."""


def measuring(asked: Request) -> str:
    """The command, whether or not that program runs such a case."""
    command = asked.stack.verify
    if asked.stored:
        # Random weights are in no format that a checkpoint is stored in.
        command = command.replace(" --weights dummy", "")
    # Others know nothing of this product's presets.
    model = asked.named if command.startswith(BENCH) else asked.hub_name
    filled = command.format(
        model=shlex.quote(model),
        gguf=shlex.quote(f"{asked.named.removesuffix('.gguf')}.gguf"),
        batch=asked.workload.batch,
        prompt=asked.workload.length,
        new=asked.workload.generated,
        dtype=asked.formats.dtype,
        gpus=asked.layout.devices,
    )
    if not asked.workload.generated:
        filled = filled.replace(" --decode-length 0", " --forward-only" + " --loss" * asked.workload.loss)
    return filled + _own_settings(asked) if filled.startswith(BENCH) else filled


def _own_settings(asked: Request) -> str:
    """The request's other settings, as this product's own command takes them."""
    named = {
        "quantize": None if asked.stored else asked.quantize,
        "kv-dtype": asked.formats.kv_dtype, "offload": asked.offload.name, "admission": asked.order,
        "group-size": asked.order and asked.workload.group, "num-groups": asked.num_groups,
        "tensor-parallel": asked.formats.shards if asked.formats.shards > 1 else None,
    }  # fmt: skip
    return "".join(f" --{name} {value}" for name, value in named.items() if value is not None)
