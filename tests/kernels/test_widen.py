"""The assembly that widens weights, read instruction by instruction: every byte becomes its number."""

from __future__ import annotations

import pytest
import torch

from inferometer.kernels import fixed_point, widen
from ptx_reader import assembly_of, halves, run, word

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
BYTES = torch.arange(256).view(-1, 4).to(torch.uint8)


def registers() -> list[int]:
    return BYTES.view(torch.int32).flatten().tolist()


def unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


@pytest.mark.parametrize(("number", "name"), [(0, "bfloat16"), (1, "float16")])
def test_whole_numbers(number: int, name: str) -> None:
    code = assembly_of(widen.widen)[number]
    got = torch.cat([torch.cat([halves(r, TYPES[name]) for r in run(code, 2, [unsigned(value)])]) for value in registers()])
    assert torch.equal(got.float(), BYTES.view(torch.int8).flatten().float())


@pytest.mark.parametrize(("number", "name"), [(2, "bfloat16"), (3, "float16")])
def test_eight_bit_floats(number: int, name: str) -> None:
    code = assembly_of(widen.widen)[number]
    got = torch.cat([torch.cat([halves(r, TYPES[name]) for r in run(code, 2, [unsigned(value)])]) for value in registers()])
    want = BYTES.view(torch.float8_e4m3fn).flatten().float()
    real = want.isfinite()
    assert torch.equal(got.float()[real], want[real])
    assert int((~real).sum()) == 2


@pytest.mark.parametrize(("number", "name"), [(0, "bfloat16"), (1, "float16")])
@pytest.mark.parametrize("zeros", [(0.0, 15.0), (8.0, 7.498046875), (3.25, 11.51)])
def test_nibbles_less_a_zero_point(number: int, name: str, zeros: tuple[float, float]) -> None:
    """The second register of a pair is that of the bytes' upper half: here with a zero point of its own."""
    code, dtype, least = assembly_of(widen.widen_nibbles)[number], TYPES[name], (128.0, 1024.0)[number]
    zero = torch.tensor(zeros, dtype=torch.float16).double()
    whole = (zero + 0.5).floor()
    shift = [word(torch.full((2,), float(one) + least), dtype) for one in whole]
    rest = [word(torch.full((2,), float(one)), dtype) for one in zero - whole]
    for value, four in zip(registers(), BYTES, strict=True):
        found = [halves(register, dtype) for register in run(code, 4, [unsigned(value), *shift, *rest])]
        behind = zero.repeat_interleave(2)
        for got, nibble in ((found[:2], four & 15), (found[2:], four >> 4)):
            want = nibble.double() - behind
            torch.testing.assert_close(torch.cat(got).double(), want, atol=2e-3, rtol=2.0**-8 if number == 0 else 2.0**-11)


@pytest.mark.parametrize(("number", "name"), [(0, "bfloat16"), (1, "float16")])
def test_nibbles_without_zero_points(number: int, name: str) -> None:
    code = assembly_of(widen.widen_symmetric)[number]
    for value, four in zip(registers(), BYTES, strict=True):
        low0, low1, high0, high1 = (halves(register, TYPES[name]).float() for register in run(code, 4, [unsigned(value)]))
        assert torch.equal(torch.cat([low0, low1]), (four & 15).float() - 8)
        assert torch.equal(torch.cat([high0, high1]), (four >> 4).float() - 8)


def test_bytes_are_put_together() -> None:
    code = assembly_of(fixed_point.bytes_together)[0]
    low, high = run(code, 2, [0xAAAA1102, 0xBBBB2203, 0xCCCC3304, 0xDDDD4405])
    assert (low, high) == (0x05040302, 0x44332211)
