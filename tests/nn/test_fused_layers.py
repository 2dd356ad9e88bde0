"""The layers as they are wired on a GPU, with the kernels' references in the kernels' place: what they are on the CPU, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import pytest
import torch
from configs import DECODERS, ENCODERS, config
from torch import Tensor

from inferometer.kernels import norm as norms
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.paged_decode import Fresh
from inferometer.model.config import read_spec
from inferometer.model.spec import Activation, ModelSpec, NormKind
from inferometer.nn import attention, paged_attention, stream
from inferometer.nn.batch import CachedRows, RaggedBatch, prompt_batch
from inferometer.nn.cache import PagedCache
from inferometer.nn.linear import Linear
from inferometer.nn.paged_attention import PagedPlan
from inferometer.nn.transformer import Transformer

CPU = torch.device("cpu")
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 6, 5], [3, 5]]
PAGE = 4


def built(key: str) -> Transformer:
    kind, options = (DECODERS | ENCODERS)[key]
    torch.manual_seed(0)
    model = Transformer(read_spec(config(kind, options).to_dict(), key), CPU, torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def norm_in_place(
    x: Tensor, delta: Tensor | None = None, *, kind: NormKind, epsilon: float, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Puts its result where the kernel does."""
    out = norm_torch(x, delta, kind=kind, epsilon=epsilon, weight=weight, bias=bias)
    return out if delta is None else delta.copy_(out)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def wire() -> None:
        monkeypatch.setattr(stream, "usable", lambda device: True)
        monkeypatch.setattr(norms, "norm", norm_in_place)

    return wire


@pytest.mark.parametrize("key", [*DECODERS, *ENCODERS])
@pytest.mark.parametrize("taking", [(), ("down",), ("output",), ("down", "output")], ids=lambda names: "-".join(names) or "none")
def test_sums_are_the_same_wherever_they_are_taken(
    monkeypatch: pytest.MonkeyPatch, carried: Callable[[], None], key: str, taking: tuple[str, ...]
) -> None:
    """taking: the linear maps that add the residual themselves."""
    model = built(key)
    batch = prompt_batch(PROMPTS, CPU)
    with torch.inference_mode():
        want = model.sweep(batch)
        carried()
        chosen = {id(module) for name, module in model.named_modules() if name.rpartition(".")[2] in taking}
        monkeypatch.setattr(Linear, "takes_residual", lambda linear, x: id(linear) in chosen)
        assert torch.equal(model.sweep(batch), want)


@pytest.mark.parametrize("key", [*DECODERS, *ENCODERS])
@pytest.mark.parametrize("taking", [(), ("down",), ("down", "output")], ids=lambda names: "-".join(names) or "none")
def test_norms_are_the_same_wherever_they_are_taken(
    monkeypatch: pytest.MonkeyPatch, carried: Callable[[], None], key: str, taking: tuple[str, ...]
) -> None:
    """By the maps that follow them, where the stream is in one piece."""
    model = built(key)
    batch = prompt_batch(PROMPTS, CPU)
    normed: list[Linear] = []

    def fused(linear: Linear, x: Tensor, norm: NormWeights, *, activation: Activation | None = None) -> Tensor:
        normed.append(linear)
        out = norm_torch(x, kind=norm.kind, epsilon=norm.epsilon, weight=norm.weight, bias=norm.bias)
        return linear(out, activation=activation)

    with torch.inference_mode():
        want = model.sweep(batch)
        carried()
        chosen = {id(module) for name, module in model.named_modules() if name.rpartition(".")[2] in taking}
        monkeypatch.setattr(Linear, "takes_residual", lambda linear, x: id(linear) in chosen)
        monkeypatch.setattr(Linear, "normed", fused)
        assert torch.equal(model.sweep(batch), want)
    # What reads nothing but a norm of the stream, where that is in one piece: the first map, and those behind one that adds by itself.
    plain = [layer for layer in model.layers if not layer.post and not layer.residual_after_norm]
    first = [layer.attention.qkv for layer in (plain if "down" in taking else plain[:1])]
    assert normed == [*_interleaved(first, [layer.feed_forward.up for layer in plain] if "output" in taking else [])]


def _interleaved(first: list[Linear], second: list[Linear]) -> list[Linear]:
    return [linear for pair in zip_longest(first, second) for linear in pair if linear is not None]


def whole(spec: ModelSpec) -> tuple[RaggedBatch, PagedCache]:
    """The prompts, the last of them a single token, in pages in reverse order, and a cache with room for them."""
    prompts = [[7], *PROMPTS]
    plain = prompt_batch(prompts, CPU)
    table = torch.arange(2 * len(prompts), dtype=torch.int32).flip(0).view(len(prompts), 2)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    seat = torch.arange(len(prompts)).repeat_interleave(lengths)
    rows = CachedRows(
        table=table,
        seats=torch.arange(len(prompts), dtype=torch.int32),
        contexts=lengths.int(),
        starts=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        places=table[seat, plain.positions // PAGE].long() * PAGE + plain.positions % PAGE,
    )
    batch = RaggedBatch(plain.token_ids, plain.positions, plain.query_lengths, plain.context_lengths, plain.rotary_lengths, rows=rows)
    return batch, PagedCache(spec, table.numel(), PAGE, CPU, torch.float32)


@pytest.mark.parametrize("key", DECODERS)
def test_paged_layers_are_those_of_segments(monkeypatch: pytest.MonkeyPatch, carried: Callable[[], None], key: str) -> None:
    model = built(key)
    batch, cache = whole(model.spec)
    with torch.inference_mode():
        want, keys, values = model.sweep(batch, cache), cache.keys.clone(), cache.values.clone()
        cache.keys.zero_()
        cache.values.zero_()
        carried()
        monkeypatch.setattr(attention, "usable", lambda device: True)
        got = model.sweep(batch, cache)
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(cache.keys, keys, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(cache.values, values, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("key", DECODERS)
def test_decoding_rows_that_write_their_own_keys(monkeypatch: pytest.MonkeyPatch, carried: Callable[[], None], key: str) -> None:
    """One launch for the key writes, the rotation and the attention of every row: the same as several."""
    model = built(key)
    batch, cache = whole(model.spec)
    assert batch.rows is not None
    kept = [0, 1, 3]  # one of the sequences stands still, and a row of padding beside
    contexts = torch.tensor([*(batch.rows.contexts[kept] + 1).tolist(), 0])
    seats = torch.tensor([*kept, 0])
    places = batch.rows.table[seats, (contexts - 1).clamp(min=0) // PAGE].long() * PAGE + (contexts - 1) % PAGE
    ones = (1,) * len(seats)

    def step(apart: bool) -> tuple[Tensor, Tensor, Tensor]:
        rows = CachedRows(
            batch.rows.table, seats.int(), contexts.int(), torch.arange(len(seats) + 1).int(), torch.where(contexts > 0, places, -1), apart
        )
        positions = (contexts - 1).clamp(min=0)
        lengths = torch.tensor([1, 6, 2, 1]).maximum(contexts)
        new = RaggedBatch(torch.tensor([5, 4, 3, 0]), positions, ones, tuple(contexts.clamp(min=1).tolist()), lengths, rows=rows)
        return model.sweep(new, cache)[:-1], cache.keys.clone(), cache.values.clone()

    with torch.inference_mode():
        model.sweep(batch, cache)
        carried()
        monkeypatch.setattr(attention, "usable", lambda device: True)
        before = cache.keys.clone(), cache.values.clone()
        want = step(apart=False)
        cache.keys.copy_(before[0])
        cache.values.copy_(before[1])
        for got, wanted in zip(step(apart=True), want, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("key", DECODERS)
def test_the_output_map_may_join_the_parts_of_attention(monkeypatch: pytest.MonkeyPatch, carried: Callable[[], None], key: str) -> None:
    """Of a row by itself, wherever the map's launch does and a kernel leaves parts."""
    model = built(key)
    batch, cache = whole(model.spec)
    assert batch.rows is not None
    rows = CachedRows(
        batch.rows.table, torch.tensor([1]).int(), torch.tensor([7]).int(), torch.arange(2).int(), torch.tensor([0]), apart=True
    )
    new = RaggedBatch(torch.tensor([5]), torch.tensor([6]), (1,), (7,), torch.tensor([7]), rows=rows)
    left: list[int] = []

    def in_parts(query: Tensor, plan: PagedPlan, rows: CachedRows, cache: PagedCache, layer: int, scale: float, fresh: Fresh) -> HeadParts:
        left.append(layer)
        out = paged_attention.attend_pages(query, plan, rows, cache, layer, scale, fresh).view_as(query)
        # Two parts: all of it, and one behind the end.
        partial = torch.stack((out, torch.full_like(out, torch.nan)), 1)
        return HeadParts(partial, torch.zeros(partial.shape[:3]), rows.contexts, keys=7)

    with torch.inference_mode():
        model.sweep(batch, cache)
        carried()
        monkeypatch.setattr(attention, "usable", lambda device: True)
        before = cache.keys.clone(), cache.values.clone()
        want = model.sweep(new, cache)
        cache.keys.copy_(before[0])
        cache.values.copy_(before[1])
        monkeypatch.setattr(attention, "attend_pages_in_parts", in_parts)
        monkeypatch.setattr(Linear, "joins", lambda linear, x: x.shape[0] == 1)
        monkeypatch.setattr(Linear, "joined", lambda linear, parts, residual: residual + linear(parts.joined()))
        got = model.sweep(new, cache)
    assert left == list(range(model.spec.layers))
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
