"""The assembly that widens weights, read instruction by instruction: every byte becomes its number."""

from __future__ import annotations

import pytest
import torch

from inferometer.kernels import fixed_point, widen
from ptx_reader import assembly_of, bits, number, run

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
BYTES = torch.arange(256).view(-1, 4).to(torch.uint8)


def registers() -> list[int]:
    return BYTES.view(torch.int32).flatten().tolist()


def unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


def numbers(code: str, value: int, outputs: int, inputs: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([number(register, dtype) for register in run(code, outputs, [unsigned(value), *inputs])])


@pytest.mark.parametrize(("which", "name"), [(0, "bfloat16"), (1, "float16")])
def test_whole_numbers(which: int, name: str) -> None:
    code = assembly_of(widen.pairs_of_bytes)[which]
    got = torch.cat([numbers(code, value, 4, [], TYPES[name]) for value in registers()])
    assert torch.equal(got.float(), BYTES.view(torch.int8).flatten().float())


@pytest.mark.parametrize(("which", "name"), [(2, "bfloat16"), (3, "float16")])
def test_eight_bit_floats(which: int, name: str) -> None:
    code = assembly_of(widen.pairs_of_bytes)[which]
    got = torch.cat([numbers(code, value, 4, [], TYPES[name]) for value in registers()])
    want = BYTES.view(torch.float8_e4m3fn).flatten().float()
    real = want.isfinite()
    assert torch.equal(got.float()[real], want[real])
    assert int((~real).sum()) == 2


@pytest.mark.parametrize(("which", "name"), [(0, "bfloat16"), (1, "float16")])
@pytest.mark.parametrize(("zero", "scale"), [(0.0, 1.0), (15.0, 0.0625), (7.498046875, 0.01), (3.25, 3.0)])
def test_nibbles_less_a_zero_point(which: int, name: str, zero: float, scale: float) -> None:
    """As scale * (nibble - zero), with the scale as it is in the type, rounded once, and the product of scale and fraction before."""
    code, dtype, least = assembly_of(widen.pairs_of_nibbles)[which], TYPES[name], (128.0, 1024.0)[which]
    whole = float(int(zero + 0.5))
    constants = [bits(-least - whole, dtype), bits(scale, dtype), bits((whole - zero) * scale, dtype)]
    held = float(torch.tensor(scale).to(dtype))
    step = 2.0**-8 if which == 0 else 2.0**-11
    for value, four in zip(registers(), BYTES, strict=True):
        nibbles = torch.stack((four & 15, four >> 4), -1).flatten().double()
        want = held * (nibbles - zero)
        got = numbers(code, value, 8, constants, dtype).double()
        torch.testing.assert_close(got, want, atol=held * step, rtol=step)


def test_bytes_are_put_together() -> None:
    code = assembly_of(fixed_point.bytes_together)[0]
    low, high = run(code, 2, [0xAAAA1102, 0xBBBB2203, 0xCCCC3304, 0xDDDD4405])
    assert (low, high) == (0x05040302, 0x44332211)
