"""What opens a sweep: the reference against the formula, the kernel against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import embed as embedding
from inferometer.kernels.embed import Entries, Positions, Tokens, TokenTable, embed, embed_torch, embed_triton
from inferometer.kernels.norm import NormWeights
from inferometer.model.spec import NormKind
from quant_cases import drawn_weight

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
PARTS = [
    ("none", None, 0),
    ("positions", None, 0),
    ("positions kind", "layer", 0),
    ("", "layer", 3),
    ("kind", "rms", 5),
    ("positions", "rms", 2),
]


@dataclass
class Case:
    """Five tokens, of which some are the newest of their seats."""

    tokens: Tokens
    table: Tensor
    positions: Positions | None
    kind: Tensor | None
    norm: NormWeights | None
    entries: Entries | None

    @classmethod
    def of(cls, hidden: int, dtype: torch.dtype, parts: str, kind: NormKind | None, entries: int, device: str = "cpu") -> Case:
        draw = torch.Generator().manual_seed(hidden)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw).to(device, dtype)

        ids = torch.tensor([3, -1, 19, -4, 0], device=device)
        newest = torch.tensor([11, 18, 2, 7], device=device)
        norm = None if kind is None else NormWeights(kind, 1e-5, drawn(hidden), drawn(hidden) if kind == "layer" else None)
        places = Positions(drawn(30, hidden), torch.tensor([0, 27, 4, 4, 9], device=device), 2) if "positions" in parts else None
        blocks = torch.arange(60, dtype=torch.int32, device=device).view(6, 10)
        seats, columns, pages = (
            torch.tensor(each[:entries], device=device) for each in ([1, 3, 5, 0, 5], [0, 9, 4, 4, 0], [77, 3, 9, 8, 5])
        )
        wanted = Entries(blocks, seats, columns, pages) if entries else None
        return cls(Tokens(ids, newest), drawn(20, hidden), places, drawn(hidden) if "kind" in parts else None, norm, wanted)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """With a block table of its own."""
        entries = None if self.entries is None else replace(self.entries, table=self.entries.table.clone())
        return self.tokens, TokenTable(self.table, self.table.dtype), self.positions, self.kind, self.norm, entries

    def exact(self) -> Tensor:
        """float64."""
        x = self.table.cpu().double()[[3, 11, 19, 7, 0]]
        if self.positions is not None:
            x = x + self.positions.table.cpu().double()[[2, 29, 6, 6, 11]]
        if self.kind is not None:
            x = x + self.kind.cpu().double()
        if self.norm is None:
            return x
        if self.norm.kind == "layer":
            x = x - x.mean(1, keepdim=True)
        assert self.norm.weight is not None
        x = x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt() * self.norm.weight.cpu().double()
        return x if self.norm.bias is None else x + self.norm.bias.cpu().double()


def check(case: Case, out: Tensor, blocks: Tensor | None) -> None:
    tolerance = TOLERANCE[case.table.dtype] * (4 if case.norm is not None else 1)
    assert out.dtype == case.table.dtype
    torch.testing.assert_close(out.cpu().double(), case.exact(), atol=tolerance, rtol=tolerance)
    if case.entries is not None:
        want = case.entries.table.clone()
        for seat, column, page in zip(case.entries.seats.tolist(), case.entries.columns.tolist(), case.entries.pages.tolist(), strict=True):
            want[seat, column] = page
        assert blocks is not None
        assert torch.equal(blocks, want)


def run(how: Callable[..., Tensor], case: Case) -> tuple[Tensor, Tensor | None]:
    arguments = case.arguments
    out = how(*arguments)
    return out, None if arguments[-1] is None else arguments[-1].table


@pytest.mark.parametrize(("parts", "kind", "entries"), PARTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reference_is_the_formula(dtype: torch.dtype, parts: str, kind: NormKind | None, entries: int) -> None:
    case = Case.of(48, dtype, parts, kind, entries)
    check(case, *run(embed, case))


@pytest.mark.parametrize(("parts", "kind", "entries"), PARTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("hidden", [48, 256])
def test_kernel_is_the_formula(
    interpreted: Callable[..., Any], hidden: int, dtype: torch.dtype, parts: str, kind: NormKind | None, entries: int
) -> None:
    case = Case.of(hidden, dtype, parts, kind, entries)
    check(case, *interpreted(run, embed_triton, case))


def test_known_tokens_stay_and_no_tokens_are_none(interpreted: Callable[..., Any]) -> None:
    table = torch.randn(9, 32)
    for how in (embed_torch, lambda *arguments: interpreted(embed_triton, *arguments)):
        assert torch.equal(how(Tokens(torch.tensor([8, 0])), TokenTable(table, table.dtype)), table[[8, 0]])
        assert how(Tokens(torch.tensor([], dtype=torch.int64)), TokenTable(table, table.dtype)).shape == (0, 32)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_of_a_table_in_8_bits_are_widened(interpreted: Callable[..., Any], dtype: torch.dtype) -> None:
    """Each by its token's scale, and rounded once; those of other ranks' tokens are zeros."""
    weight = drawn_weight(20, 48, "int8")
    table, tokens = TokenTable(weight, dtype), Tokens(torch.tensor([3, 19, 0, -2]), torch.tensor([7, 11]))
    want = weight.dequantised()[[3, 19, 0, 11]].to(dtype)
    other = want.clone()
    other[1:3] = 0
    ranked = TokenTable(weight.rows(2, 13), dtype)
    assert torch.equal(embed_torch(tokens, table), want)
    assert torch.equal(embed_torch(replace(tokens, held=range(2, 13)), ranked), other)
    # The interpreter cuts bits off where a GPU rounds to bfloat16.
    off = {"rtol": torch.finfo(dtype).eps, "atol": 0.0}
    torch.testing.assert_close(interpreted(embed_triton, tokens, table), want, **off)
    torch.testing.assert_close(interpreted(embed_triton, replace(tokens, held=range(2, 13)), ranked), other, **off)


def held_alone(how: Callable[..., Tensor], case: Case, held: range) -> Tensor:
    """Of a table that has the rows of some tokens, and one that stands for none."""
    tokens, whole, *others = case.arguments
    table = whole.matrix
    padded = torch.cat((table[held.start : held.stop], torch.full_like(table[:1], torch.nan)))
    return how(replace(tokens, held=held), TokenTable(padded, padded.dtype), *others)


@pytest.mark.parametrize("parts", ["none", "positions"])
def test_tables_of_ranks_add_up_to_the_whole(interpreted: Callable[..., Any], parts: str) -> None:
    """Rows of other tokens are zeros, so that sums over ranks are exact."""
    case = Case.of(48, torch.float32, parts, None, 3)
    plain = replace(case, positions=None)
    for how in (embed_torch, embed_triton):
        first = interpreted(held_alone, how, case, range(7))
        rest = [interpreted(held_alone, how, plain, held) for held in (range(7, 12), range(12, 20), range(20, 20))]
        assert torch.equal(first + rest[0] + rest[1] + rest[2], embed_torch(*case.arguments))


def test_rows_too_wide_for_the_kernel_are_served_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "usable", lambda device: True)
    monkeypatch.setattr(embedding, "WIDEST", 16)
    case = Case.of(48, torch.float32, "positions", None, 2)
    check(case, *run(embed, case))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("parts", "kind", "entries"), PARTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("hidden", [50, 768, 2560, 12288])
def test_gpu_is_the_formula(hidden: int, dtype: torch.dtype, parts: str, kind: NormKind | None, entries: int) -> None:
    case = Case.of(hidden, dtype, parts, kind, entries, "cuda")
    check(case, *run(embed, case))
