"""Which device and which number format a model runs in."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from inferometer.errors import UserError
from inferometer.hardware.host import Host, read_host
from inferometer.kernels.support import usable
from inferometer.model.formats import kv_format
from inferometer.nn.numerics import Numerics

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def resolve_device(name: str) -> torch.device:
    """The torch device for "auto" (the first GPU, else the CPU), "cpu", "cuda" or "cuda:N".

    Raises UserError for a device that does not exist here.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    # torch numbers processors, too, and takes any number: they are one device.
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and name != "cpu"):
        raise UserError(f"--device {name} is unknown; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"--device {name} asks for a GPU, but torch sees none here; use --device cpu")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise UserError(f"--device {name} does not exist; this machine has {torch.cuda.device_count()} GPU(s), numbered from 0")
    return torch.device("cuda", index)


def resolve_dtype(name: str, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """The torch dtype for a --dtype value on `device`.

    "auto" is the checkpoint's own on a GPU (`stored`; None if it has no 16- or 32-bit one), bfloat16 on a CPU with instructions
    for it, else float32. Raises UserError for an unknown name or a format that the device has no fast arithmetic for.
    """
    if name == "auto":
        if device.type == "cpu":
            return torch.bfloat16 if supports(device, torch.bfloat16) else torch.float32
        wanted = stored if stored in (torch.float16, torch.bfloat16, torch.float32) else torch.bfloat16
        return wanted if supports(device, wanted) else torch.float16
    if name not in DTYPES:
        raise UserError(f"--dtype {name} is unknown; use auto, float32, float16 or bfloat16")
    dtype = DTYPES[name]
    if not supports(device, dtype):
        instead = "bfloat16 or float32" if device.type == "cpu" and supports(device, torch.bfloat16) else "float32"
        raise UserError(f"--dtype {name}: this {_label(device)} has no {name} matrix instructions; use --dtype {instead}")
    return dtype


def resolve_numerics(device: torch.device, *, deterministic: bool) -> Numerics:
    """The numerics for a --deterministic value on `device`. Raises UserError for a GPU that the kernels do not run on."""
    if deterministic and device.type == "cuda" and not usable(device):
        raise UserError(
            "--deterministic on a GPU needs Triton and compute capability 7.5 or higher; pip install triton, or use --device cpu"
        )
    return Numerics.INVARIANT if deterministic else Numerics.FASTEST


def resolve_kv_dtype(name: str, *, deterministic: bool) -> torch.dtype | None:
    """The type of the KV cache for a --kv-dtype value; None for the activations' own. Raises UserError for an unknown name."""
    wanted = kv_format(name)
    if wanted is None:
        return None
    if deterministic:
        raise UserError("--deterministic with --kv-dtype: a page's scale follows what comes to it at a time; leave one of them out")
    return torch.int8 if wanted == "int8" else torch.float8_e4m3fn


def sixteen_bits(device: torch.device, dtype: torch.dtype) -> str:
    """ "a 16-bit --dtype, " as one of the remedies of a model that is too large in `dtype`; nothing where it has 16 bits, or none serve."""
    helps = dtype == torch.float32 and any(supports(device, each) for each in (torch.bfloat16, torch.float16))
    return "a 16-bit --dtype, " if helps else ""


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies matrices in `dtype` natively, not by converting every operand."""
    if dtype == torch.float32:
        return True
    if device.type == "cuda":
        needed = (8, 0) if dtype == torch.bfloat16 else (7, 0)
        return torch.cuda.get_device_capability(device) >= needed
    return _host().multiplies_bfloat16 if dtype == torch.bfloat16 else _host().multiplies_float16


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all that was asked of it. For clocks at the edge of a measurement, never inside a loop."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _label(device: torch.device) -> Literal["GPU", "CPU"]:
    return "GPU" if device.type == "cuda" else "CPU"


@cache
def _host() -> Host:
    return read_host()
