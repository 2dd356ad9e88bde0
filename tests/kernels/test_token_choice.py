"""Tokens from logits: the reference against the definition, the kernels against both, in any company."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.kernels.token_choice import BLOCK, best, choose_torch, choose_triton, draw
from inferometer.kernels.token_rows import Bounds, Drawing, Places

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
quick = settings(deadline=None, max_examples=100)
LONG = 2 * BLOCK + 100
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of every kind: equals, holes, a row of nothing, an infinite one. Rows lie between NaN, at places that suit no wide load."""
    room = torch.full((rows + 1, vocabulary + 3), torch.nan)
    logits = room[:-1, 1:-2]
    logits.copy_(torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3)
    logits[:, 1::7] = -math.inf
    logits[:, 2::50] = logits.amax(1, keepdim=True)
    logits[1 % rows, ::3] = math.nan
    if rows > 4:
        logits[2] = math.nan
        logits[3, vocabulary // 2] = math.inf
        logits[4] = -3e38 if dtype != torch.float16 else -6e4
    return room.to(dtype)[:-1, 1:-2]


def drawing_of(rows: int, seed: int = 0) -> Drawing:
    generator = torch.Generator().manual_seed(seed)
    samples = (torch.rand(rows, generator=generator) < 0.7).long()
    temperatures = torch.where(samples != 0, torch.rand(rows, generator=generator) * 2 + 0.1, 1.0)
    table = torch.rand(rows, 9, dtype=torch.float64, generator=generator)
    return Drawing(samples, temperatures, table[:, 2:7], torch.tensor([3]))


def bounds_of(logits: Tensor) -> Bounds:
    """Every row to what a filter could leave: a floor that cuts through equals, a ceiling, nothing left out."""
    rows, vocabulary = logits.shape
    clean = logits.float().nan_to_num(nan=-math.inf, posinf=3e38)
    floors = clean.sort(dim=1, descending=True).values[:, min(60, vocabulary - 1)].clone()
    floors[::3] = -math.inf
    ids = torch.full((rows,), vocabulary // 2, dtype=torch.int32)
    ids[floors == -math.inf] = vocabulary
    # Of a row that is left with less there are those below the middle.
    ceilings = torch.where(torch.arange(rows) % 2 == 0, torch.inf, clean.amax(1))
    return Bounds(floors, ids, ceilings)


def moved(parts: Any, rows: slice, device: torch.device | None = None) -> Any:
    """Drawing or Bounds of some rows, on the CPU or a device."""
    if parts is None:
        return None
    fields = {name: getattr(parts, name) for name in parts.__slots__}
    return type(parts)(**{name: (part if name == "step" else part[rows]).to(device or "cpu") for name, part in fields.items()})


def kernel(logits: Tensor, drawing: Drawing | None, bounds: Bounds | None, places: Places) -> tuple[Tensor, Tensor, Tensor | None]:
    choose_triton(logits, places, drawing, bounds)
    return places.token_ids, places.logprobs, places.newest


def exactly(logits: Tensor, drawing: Drawing | None, bounds: Bounds | None) -> Tensor:
    """Log-probabilities in float64, by the formula."""
    scores = logits.cpu().double().nan_to_num(nan=-math.inf, posinf=torch.finfo(torch.float32).max)
    if bounds is not None:
        ids = torch.arange(scores.shape[1])
        for row in range(len(scores)):
            floor, last, ceiling = (part[row].item() for part in (bounds.floors, bounds.last_ids, bounds.ceilings))
            scores[row, ~((scores[row] > floor) | ((scores[row] == floor) & (ids <= last))) | (scores[row] > ceiling)] = -math.inf
    top = scores.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    heat = 1 if drawing is None else drawing.temperatures.cpu().double()[:, None]
    return ((scores - top) / heat).log_softmax(1).nan_to_num(nan=-math.inf, neginf=-math.inf)


def check(logits: Tensor, drawing: Drawing | None, bounds: Bounds | None, token_ids: Tensor, logprobs: Tensor) -> None:
    """The token is the first of the best or lies where the cumulative distribution passes its number, up to the rounding of float32."""
    token_ids, logprobs = token_ids.cpu(), logprobs.cpu()
    want = exactly(logits, drawing, bounds)
    torch.testing.assert_close(logprobs.double(), want.gather(1, token_ids[:, None]).squeeze(1), atol=4e-6, rtol=4e-6)
    below = want.exp().cumsum(1)
    for row, token in enumerate(token_ids.tolist()):
        if want[row].amax() == -math.inf:
            assert (token, logprobs[row].item()) == (0, -math.inf)
        elif drawing is None or not drawing.samples[row]:
            assert token == int(want[row].argmax())
        else:
            number = drawing.uniforms[row, 0 if drawing.step is None else int(drawing.step)].item()
            assert below[row, token] - want[row, token].exp() <= number + 1e-5
            assert number <= below[row, token] + 1e-5
            assert want[row, token] > -math.inf


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("vocabulary", [1, 100, BLOCK, LONG])
@pytest.mark.parametrize("drawn", [False, True])
def test_reference_is_the_formula(vocabulary: int, dtype: torch.dtype, drawn: bool) -> None:
    logits, drawing = logits_of(7, vocabulary, dtype), drawing_of(7) if drawn else None
    for bounds in (None, bounds_of(logits)):
        places = Places.on(logits.device, 7)
        choose_torch(logits, places, drawing, bounds)
        check(logits, drawing, bounds, places.token_ids, places.logprobs)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("vocabulary", [1, 100, LONG])
@pytest.mark.parametrize("kind", ["best", "drawn", "bounded"])
def test_kernel_is_the_formula_and_the_reference(interpreted: Callable[..., Any], vocabulary: int, dtype: torch.dtype, kind: str) -> None:
    logits, drawing = logits_of(7, vocabulary, dtype), None if kind == "best" else drawing_of(7)
    bounds = bounds_of(logits) if kind == "bounded" else None
    token_ids, logprobs, _ = interpreted(kernel, logits, drawing, bounds, Places.on(logits.device, 7))
    check(logits, drawing, bounds, token_ids, logprobs)
    places = Places.on(logits.device, 7)
    choose_torch(logits, places, drawing, bounds)
    assert torch.equal(token_ids, places.token_ids)
    torch.testing.assert_close(logprobs, places.logprobs, atol=4e-6, rtol=4e-6)


def test_a_row_in_the_kernel_is_the_row_alone_bit_by_bit(interpreted: Callable[..., Any]) -> None:
    """Alone without what others ask for, and in float32 what sixteen bits hold."""
    logits, drawing = logits_of(6, LONG, torch.bfloat16), drawing_of(6)
    none = Bounds(torch.full((6,), -math.inf), torch.full((6,), LONG, dtype=torch.int32), torch.full((6,), math.inf))
    token_ids, logprobs, _ = interpreted(kernel, logits, drawing, none, Places.on(logits.device, 6))
    for row in range(6):
        own = moved(drawing, slice(row, row + 1))
        one = interpreted(kernel, logits[row : row + 1].float(), own if own.samples.item() else None, None, Places.on(logits.device, 1))
        assert (one[0].item(), one[1].item()) == (token_ids[row].item(), logprobs[row].item())


def test_tokens_go_to_their_seats_and_room_may_be_left(interpreted: Callable[..., Any]) -> None:
    logits, seats = logits_of(3, 100, torch.float32), torch.tensor([4, 0, 2, 5])
    want = best(logits.nan_to_num(nan=-math.inf))
    for seated in (False, True):
        places = Places.on(logits.device, 4)
        if seated:
            places = places.seated(seats, torch.full((6,), -7))
        token_ids, logprobs, newest = interpreted(kernel, logits, None, None, places)
        assert token_ids.tolist() == [*want.tolist(), 0]
        assert logprobs[3] == 0
        if seated:
            assert newest.tolist() == [want[1], -7, want[2], -7, want[0], -7]
        choose_torch(logits, places)
        assert torch.equal(places.token_ids, token_ids)
        assert places.newest is None or torch.equal(places.newest, newest)


def test_no_rows_are_no_special_case() -> None:
    logits, places = torch.zeros(0, 5), Places.on(torch.device("cpu"), 0)
    for choose in (choose_torch, choose_triton):
        choose(logits, places)
    assert (places.rows, places.token_ids.shape, places.logprobs.shape) == (0, (0,), (0,))


@quick
@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 1.0]), min_size=1, max_size=9), st.integers(0, 3))
def test_the_best_is_the_first_of_equals(values: list[float], shift: int) -> None:
    scores = torch.full((2, shift * BLOCK + len(values)), -math.inf)
    scores[0, shift * BLOCK :] = torch.tensor(values)
    assert best(scores).tolist() == scores.argmax(1).tolist()


@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_blocks_follow_each_other(u: float) -> None:
    """Where all tokens are equally likely, the number says which it is, whatever the blocks."""
    vocabulary = 4 * BLOCK
    assert draw(torch.zeros(1, vocabulary), torch.tensor([[u]], dtype=torch.float64)).item() == int(u * vocabulary)


def test_no_number_reaches_a_token_without_probability() -> None:
    """Not at the edges of blocks either."""
    scores = torch.full((1, 3 * BLOCK), -math.inf)
    scores[0, [BLOCK + 3, 2 * BLOCK - 1]] = 0.0
    numbers = [0.0, 0.4999999, 0.5, 1 - 2.0**-53]
    drawn = draw(scores.expand(4, -1), torch.tensor(numbers, dtype=torch.float64)[:, None]).tolist()
    assert drawn == [BLOCK + 3, BLOCK + 3, 2 * BLOCK - 1, 2 * BLOCK - 1]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("vocabulary", [100, 49152, 50258, 250880])
def test_gpu_is_the_formula(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    here, cuda = logits_of(rows, vocabulary, dtype, seed), torch.device("cuda")
    there = here.to(cuda)
    few = slice(0, 12)
    for drawing in (None, drawing_of(rows, seed)):
        for bounds in (None, bounds_of(here)):
            drawn, bound = moved(drawing, slice(None), cuda), moved(bounds, slice(None), cuda)
            token_ids, logprobs, _ = kernel(there, drawn, bound, Places.on(cuda, rows))
            check(here[few], moved(drawing, few), moved(bounds, few), token_ids[few], logprobs[few])
            for row in range(0, rows, max(1, rows // 5)):  # alone: bit by bit
                own = slice(row, row + 1)
                one = kernel(there[own], moved(drawn, own, cuda), moved(bound, own, cuda), Places.on(cuda, 1))
                assert torch.equal(one[0], token_ids[own])
                assert torch.equal(one[1], logprobs[own])
