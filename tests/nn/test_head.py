"""The head: logits wherever they are wanted, and the best token without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels import head_matrix
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.token_rows import Places
from inferometer.model.description import describe
from inferometer.nn import head as heads
from inferometer.nn.head import Head, padded_rows, product_in_units

HIDDEN = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))


def head(embedding: int) -> tuple[Head, Tensor]:
    """One that is tied, and the table that it is tied to."""
    made = Head(replace(describe("opt-125m", config_only=True).spec, hidden=16, embedding=embedding, vocabulary=40, tied_head=True))
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made, torch.randn(40, embedding, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("embedding", [16, 8])
def test_logits_are_the_product_of_the_projected_states(embedding: int) -> None:
    made, table = head(embedding)
    states = HIDDEN if made.projection is None else functional.linear(HIDDEN, made.projection.weight)
    want = functional.linear(states, table)
    assert torch.equal(made(HIDDEN, table), want)
    room = padded_rows(HIDDEN, 40)
    assert made(HIDDEN, table, room).data_ptr() == room.data_ptr()
    torch.testing.assert_close(room, want)
    places = Places.on(HIDDEN.device, 3)
    made.choose(HIDDEN, table, places, room)
    assert torch.equal(places.token_ids, want.argmax(1))
    torch.testing.assert_close(places.logprobs, want.log_softmax(1).amax(1))


@pytest.mark.parametrize("embedding", [16, 8])
def test_states_that_are_yet_to_be_normed(embedding: int) -> None:
    made, table = head(embedding)
    norm = NormWeights("layer", 1e-5, 1 + HIDDEN[0] / 4, HIDDEN[1])
    want = made(norm.of(HIDDEN), table)
    assert torch.equal(made(HIDDEN, table, norm=norm), want)
    places = Places.on(HIDDEN.device, 3)
    made.choose(HIDDEN, table, places, None, norm)
    assert torch.equal(places.token_ids, want.argmax(1))


@pytest.mark.parametrize("whole", [False, True])
def test_a_launch_that_holds_whole_rows_takes_the_norm(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """Wired as on a GPU, with the references in the kernels' place; another launch gets rows that are normed."""
    made, table = head(16)
    norm = NormWeights("layer", 1e-5, None, None)
    taken: list[NormWeights | None] = []

    def product(x: Tensor, weight: Tensor, *, norm: NormWeights | None, launch: Tiling, out: Tensor | None) -> Tensor:
        taken.append(norm)
        return functional.linear(x if norm is None else norm.of(x), weight)

    monkeypatch.setattr(heads, "head_launch_for", lambda *arguments: Tiling(8, 64, 4, 1, 1, whole=whole))
    monkeypatch.setattr(head_matrix, "skinny_triton", product)
    want = functional.linear(norm.of(HIDDEN), table)
    assert torch.equal(made(HIDDEN, table, norm=norm), want)
    assert taken == [norm if whole else None]
    places = Places.on(HIDDEN.device, 3)
    made.choose(HIDDEN, table, places, None, norm)
    assert torch.equal(places.token_ids, want.argmax(1))


@pytest.mark.parametrize(("dtype", "width", "stride"), [(torch.bfloat16, 17, 64), (torch.float32, 33, 64), (torch.float32, 32, 32)])
def test_rows_begin_at_multiples_of_128_bytes(dtype: torch.dtype, width: int, stride: int) -> None:
    rows = padded_rows(torch.zeros(3, 1, dtype=dtype), width)
    assert rows.shape == (3, width)
    assert rows.stride() == (stride, 1)
    assert padded_rows(rows, width, 7).shape == (7, width)


@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 130, 200])
def test_a_product_in_pieces_is_the_product(vocabulary: int) -> None:
    weight = torch.randn(vocabulary, 16, generator=torch.Generator().manual_seed(3))
    room = padded_rows(HIDDEN, vocabulary).fill_(torch.nan)
    got = product_in_units(HIDDEN, weight, room)
    assert got.data_ptr() == room.data_ptr()
    torch.testing.assert_close(got, HIDDEN @ weight.T)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("vocabulary", [17, 50257, 50258, 50304])
@pytest.mark.parametrize("rows", [1, 100, 1024])
def test_gpu_product_in_pieces_is_the_product(rows: int, vocabulary: int) -> None:
    weight = torch.randn(vocabulary, 256, device="cuda", dtype=torch.bfloat16)
    states = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16) / 16
    room = padded_rows(states, vocabulary).fill_(torch.nan)
    got = product_in_units(states, weight, room)
    torch.testing.assert_close(got.double(), states.double() @ weight.double().T, atol=1.6e-2, rtol=1.6e-2)
