"""Runs the few instructions of inline assembly that kernels use: what it says is held against what it is for, without a GPU."""

from __future__ import annotations

import inspect
import re

import torch

from inferometer.kernels.support import Kernel

PACKED = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}


def assembly_of(kernel: Kernel) -> list[str]:
    """Every piece of assembly in a kernel, in the order of its text."""
    return re.findall(r'code: tl\.constexpr = [^"]*?"""\{(.*?)\}"""', inspect.getsource(kernel.function), re.DOTALL)


def run(code: str, outputs: int, inputs: list[int]) -> list[int]:
    """The registers $0 to $outputs after the code, whose inputs are the registers behind them. Two of 16 bits in braces are one of 32."""
    registers = {f"${outputs + i}": value for i, value in enumerate(inputs)}
    for statement in (part.strip() for part in code.split(";")):
        if not statement or statement.startswith(".reg"):
            continue
        name, rest = statement.split(None, 1)
        target, *sources = re.findall(r"\{.*?\}|[^\s,]+", rest)
        found = _result(name, [_value(source, registers) for source in sources]) & 0xFFFFFFFF
        if target.startswith("{"):
            low, high = target[1:-1].split(",")
            registers[low.strip()], registers[high.strip()] = found & 0xFFFF, found >> 16
        else:
            registers[target] = found
    return [registers[f"${i}"] for i in range(outputs)]


def _value(source: str, registers: dict[str, int]) -> int:
    if source.startswith("{"):
        low, high = (registers[name.strip()] for name in source[1:-1].split(","))
        return low | high << 16
    return registers[source] if source in registers else int(source, 0)


def _result(name: str, values: list[int]) -> int:
    match name.split("."):
        case ["mov", "b32"]:
            return values[0]
        case ["and", "b32"]:
            return values[0] & values[1]
        case ["xor", "b32"]:
            return values[0] ^ values[1]
        case ["shr", "u32"]:
            return values[0] >> values[1]
        case ["lop3", "b32"]:
            assert values[3] == 0xEA  # (a and b) or c
            return values[0] & values[1] | values[2]
        case ["prmt", "b32"]:
            both = values[0] | values[1] << 32
            picked = [both >> 8 * (values[2] >> 4 * i & 15) & 255 for i in range(4)]
            return sum(byte << 8 * i for i, byte in enumerate(picked))
        case ["fma", "rn", packed]:
            a, b, c = (halves(value, PACKED[packed]).double() for value in values)
            return word(a * b + c, PACKED[packed])
        case ["mul", "rn", packed]:
            a, b = (halves(value, PACKED[packed]).double() for value in values)
            return word(a * b, PACKED[packed])
    raise AssertionError(f"{name} is not read here")


def number(value: int, dtype: torch.dtype) -> torch.Tensor:
    """The number of 16 bits in a register of its own."""
    return halves(value, dtype)[0]


def bits(value: float, dtype: torch.dtype) -> int:
    """A number's 16 bits."""
    return word(torch.full((2,), value), dtype) & 0xFFFF


def halves(value: int, dtype: torch.dtype) -> torch.Tensor:
    """The two numbers of 16 bits in a register, the lower first."""
    return torch.tensor([value & 0xFFFF, value >> 16], dtype=torch.int32).to(torch.uint16).view(dtype)


def word(numbers: torch.Tensor, dtype: torch.dtype) -> int:
    """The register of two numbers, rounded once."""
    low, high = numbers.to(dtype).view(torch.uint16).to(torch.int32).tolist()
    return int(low) | int(high) << 16
