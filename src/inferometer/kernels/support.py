"""What every kernel here needs: whether Triton can run on a device, and kernels that do without Triton until they are launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, TypeAlias

import torch

# The annotation of a kernel's compile-time arguments. Triton knows them by this name and looks no further.
constexpr: TypeAlias = Any

tl: Any = None
"""Stands for triton.language in kernels, which find it by this name once they are compiled."""

OLDEST = (7, 5)
"""The lowest compute capability that Triton compiles these kernels for."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a kernel is launched. block: keys an iteration; warps: a program; stages: iterations whose loads overlap, 1 for loads
    straight into registers; queries: query tokens, or heads that share a key head, a program at most."""

    block: int
    warps: int
    stages: int
    queries: int = 1


Table: TypeAlias = tuple[tuple[tuple[int, int], tuple[tuple[int, Tiles], ...]], ...]
"""Launches by device and head: (lowest compute capability, ((widest head in bytes, how to launch), ...)), each best first."""


def look_up(table: Table, device_capability: tuple[int, int], head_bytes: int) -> Tiles:
    """The first launch of the first device that fits. What fits none (a CPU, in tests) is served by the last ones."""
    heads = next((heads for least, heads in table if device_capability >= least), table[-1][1])
    return next((tiles for widest, tiles in heads if head_bytes <= widest), heads[-1][1])


class Kernel:
    """A function in Triton's language that becomes a Triton kernel when it is first launched.

    Triton is optional and slow to import, so that its decorator cannot stand over a function of a module that every run imports.
    In the function `tl` is triton.language; other kernels of its module may be called by their names.
    plain: arguments that change from launch to launch. Triton would otherwise compile anew, for seconds, whenever one of them
    turns 1, a multiple of 16, or an address that is none.
    """

    def __init__(self, function: FunctionType, plain: tuple[str, ...]) -> None:
        self.function = function
        self.plain = plain

    @cached_property
    def compiled(self) -> Any:
        """Triton's own object: a JITFunction, or with TRITON_INTERPRET=1 an InterpretedFunction."""
        source = self.function
        scope = source.__globals__
        helpers = {name: scope[name].compiled for name in source.__code__.co_names if isinstance(scope.get(name), Kernel)}
        # A copy with a scope of its own: the module that it comes from stays as it is. Triton evaluates the annotations too.
        tl = import_module("triton.language")
        scope = scope | helpers | {"tl": tl, "Any": tl.tensor, "constexpr": tl.constexpr}
        function = FunctionType(source.__code__, scope, source.__name__)
        function.__module__, function.__qualname__, function.__annotations__ = (
            source.__module__,
            source.__qualname__,
            source.__annotations__,
        )
        return import_module("triton").jit(function, do_not_specialize=self.plain)

    def __call__(self, *arguments: Any) -> Any:
        """How kernels use each other; the compiled one never comes here."""
        raise TypeError(f"the kernel {self.function.__name__} is called by other kernels, and launched from Python")

    def launch(self, grid: tuple[int, ...], tensor: torch.Tensor, *arguments: Any, **options: Any) -> None:
        """Run on the device of `tensor`, which is the first argument."""
        with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
            self.compiled[grid](tensor, *arguments, **options)


def kernel(*plain: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator: see `Kernel`."""

    def wrap(function: Callable[..., Any]) -> Kernel:
        assert isinstance(function, FunctionType)
        return Kernel(function, plain)

    return wrap


@kernel()
def wait_for_inputs(early: constexpr) -> None:
    """Lets the next launch begin, and waits until the one ahead has ended: what it has written is there from then on."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@lru_cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device; (0, 0) for any other."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@lru_cache
def usable(device: torch.device) -> bool:
    """Whether the Triton kernels run there: a CUDA device that is not too old, and Triton is installed."""
    return device.type == "cuda" and find_spec("triton") is not None and capability(device) >= OLDEST


@lru_cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; 1 for any other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def early(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch that need not wait for the one ahead of it to end: on Hopper and later the kernel waits by itself.

    The kernel must call `wait_for_inputs`, or the same by itself, before it reads what another has written, and before it writes.
    """
    return {"early": True, "launch_pdl": True} if capability(device) >= (9, 0) else {"early": False}


def wide(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether matrix products are taken in float32: GPUs before Ampere know no bfloat16, and Triton's interpreter gets it wrong."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and capability(device) < (8, 0))


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()
