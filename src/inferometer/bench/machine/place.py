"""Where cases run, as far as that is known without torch: the device that a --device value means here, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal

from inferometer.errors import UserError
from inferometer.hardware.catalogue import CPU, find_device
from inferometer.hardware.detect import Machine, detect
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.host_memory import free_host_bytes

_GPU_DTYPES: Final[tuple[Literal["float32", "float16", "bfloat16"], ...]] = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device. `torch_name` is torch's ("cpu", "cuda:0"); `slug` and `spec` are the catalogue's, None for a card that it does not know.

    count: devices of the machine, over which a model could be sharded; a CPU takes any number of shards.
    memory_bytes: of one, None where the driver does not tell.
    """

    torch_name: str
    slug: str | None
    name: str
    spec: DeviceSpec | None
    count: int
    memory_bytes: int | None
    multiplies: tuple[str, ...]

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """As torch has it."""
        return "cpu" if self.torch_name == "cpu" else "cuda"

    def lacks(self, shards: int) -> str | None:
        """Why a model cannot be spread over so many devices, from this one on; None if it can."""
        there = self.count - int(self.torch_name.partition(":")[2] or 0)
        if self.kind == "cpu" or shards <= there:
            return None
        return f"--tensor-parallel {shards} needs {shards} GPUs, and there {'is' if there == 1 else 'are'} {there} here"

    def free_bytes(self) -> int | None:
        """What processes of ours may take together: all of a GPU, and what is free of a host's memory now."""
        return free_host_bytes() if self.kind == "cpu" else self.memory_bytes


def find_place(device: str, machine: Machine | None = None) -> Place:
    """The place of a --device value: auto (the first GPU, else the CPU), cpu, cuda or cuda:N. Raises UserError for one that is not here."""
    here = machine or detect()
    if device == "auto":
        device = "cuda" if here.gpus and _torch_takes_gpus() else CPU
    if device == CPU:
        host = here.host
        also = (("bfloat16", host.multiplies_bfloat16), ("float16", host.multiplies_float16))
        return Place(
            torch_name=CPU,
            slug=CPU,
            name=host.model,
            spec=find_device(CPU),
            count=1,
            memory_bytes=host.memory_bytes,
            multiplies=("float32", *(dtype for dtype, fast in also if fast)),
        )
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise UserError(f"--device {device} is unknown; use auto, cpu, cuda or cuda:N")
    index = int(number or 0)
    if index >= len(here.gpus):
        raise UserError(f"--device {device} does not exist; this machine has {len(here.gpus)} GPU(s); use --device cpu")
    slug = here.slug(index)
    spec = None if slug is None else find_device(slug)
    return Place(
        torch_name=f"cuda:{index}",
        slug=slug,
        name=here.gpus[index].name,
        spec=spec,
        count=len(here.gpus),
        memory_bytes=here.gpus[index].memory_bytes or (None if spec is None else spec.memory_bytes),
        multiplies=tuple(dtype for dtype in _GPU_DTYPES if spec is None or spec.matmul_flop_s(dtype) is not None),
    )


def _torch_takes_gpus() -> bool:
    """Whether the installed torch is a build for GPUs. It is asked by its version: importing it takes seconds."""
    try:
        return "+cpu" not in metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
