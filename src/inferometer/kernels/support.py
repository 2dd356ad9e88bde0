"""What every kernel here needs: whether Triton can run on a device, and kernels that do without Triton until they are launched."""

from __future__ import annotations

import sys
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

FP8_CONVERSION = (8, 9)
"""The lowest compute capability that converts from e4m3 by itself."""


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


_HALF, _WIDEST = 1 << 31, 1 << 63
"""Whole numbers of 32 and of 64 bits with a sign are below."""


class Kernel:
    """A function in Triton's language that becomes a Triton kernel when it is first launched.

    Triton is optional and slow to import, so that its decorator cannot stand over a function of a module that every run imports.
    In the function `tl` is triton.language; other kernels of its module may be called by their names.
    plain: arguments that change from launch to launch. Triton would otherwise compile anew, for seconds, whenever one of them
    turns 1, a multiple of 16, or an address that is none.
    """

    def __init__(self, function: FunctionType, plain: tuple[str, ...]) -> None:
        assert function.__defaults__ is None
        self.function = function
        self.plain = plain
        self._known: dict[tuple[object, ...], Any] = {}

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

    def launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Run on the device of the first argument, a tensor. Arguments come in order; the last of them, compile-time ones, and Triton's
        options may go by name.

        Triton looks at every argument of every launch before it knows which of its kernels is meant, which takes longer than the rest of
        the launch together. What it would look at is looked at here, and the kernel that it found the first time is launched.
        """
        device = arguments[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.launch(grid, *arguments, **options)
        facts, values = self._facts(arguments)
        key = (device.index, *facts, *options, *options.values())
        known = self._known.get(key)
        if known is None:
            found = self.compiled[grid](*arguments, **options)
            if found is not None:  # the interpreter compiles nothing
                self._known[key] = found
            return None
        named = [options[name] for name in self._names[len(values) :]]
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        # What CompiledKernel's own way does, without hooks for Triton's profiler.
        known.run(*(*grid, 1, 1)[:3], stream, known.function, known.packed_metadata, None, None, None, *values, *named)
        return None

    @cached_property
    def _names(self) -> tuple[str, ...]:
        code = self.function.__code__
        return code.co_varnames[: code.co_argcount]

    @cached_property
    def _roles(self) -> tuple[str, ...]:
        notes = self.function.__annotations__
        return tuple("fixed" if notes[name] == "constexpr" else "plain" if name in self.plain else "" for name in self._names)

    def _facts(self, arguments: tuple[Any, ...]) -> tuple[list[object], list[Any]]:
        """What Triton compiles for: types, and of whole numbers and addresses whether they are 1, or multiples of 16.

        And the arguments as a launch takes them, tensors as addresses: of a tensor it would ask the driver whose memory that is.
        """
        facts: list[object] = []
        values = []
        for role, value in zip(self._roles, arguments, strict=False):
            if isinstance(value, torch.Tensor):
                facts.append(value.dtype)
                value = value.data_ptr()
                facts.append(role or not value & 15)
            elif role == "fixed":
                facts.append(value)
            elif type(value) is int:
                width = 0 if -_HALF <= value < _HALF else 1 if value < _WIDEST else 2
                facts.append(width if role else (width, value == 1, not value & 15))
            else:
                facts.append(type(value))
            values.append(value)
        return facts, values


def kernel(*plain: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator: see `Kernel`."""

    def wrap(function: Callable[..., Any]) -> Kernel:
        assert isinstance(function, FunctionType)
        return Kernel(function, plain)

    return wrap


def variants() -> int:
    """Kernels that this process has had compiled or found compiled, each for arguments of its own."""
    modules = [module for name, module in sys.modules.items() if name.startswith(__package__ + ".")]
    return sum(len(found._known) for found in {each for module in modules for each in vars(module).values() if isinstance(each, Kernel)})


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
