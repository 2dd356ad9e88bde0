"""Whether somebody else is at work on the GPU that cases are to run on."""

from __future__ import annotations

from typing import Final

from inferometer.bench.machine.place import Place
from inferometer.hardware.detect import Machine
from inferometer.hardware.telemetry import Telemetry
from inferometer.model.byte_size import gib

# What drivers and display servers keep of an idle card is less.
_IDLE_BYTES: Final = 2 << 30


def foreign(place: Place, machine: Machine, telemetry: Telemetry | None = None) -> str | None:
    """What others hold of a GPU, in a sentence, to be asked before this program's own processes are there; None where they hold nothing."""
    index = int(place.torch_name.partition(":")[2] or 0)
    if place.kind == "cpu" or index >= len(machine.gpus):
        return None
    held = (telemetry or Telemetry(machine.gpus[index].index)).read().value("gpu_memory_used_bytes")
    if held is None or held < _IDLE_BYTES:
        return None
    return (
        f"other processes hold {gib(held, digits=1)} of {place.torch_name}: what they do is in the times, and that memory is not to be had"
    )
