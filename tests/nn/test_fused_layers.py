"""The layers as they are wired on a GPU, with the kernels' references in the kernels' place: what they are on the CPU, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.parity.configs import DECODERS, ENCODERS, config
from torch import Tensor

from inferometer.kernels.norm import norm_torch
from inferometer.model.config import read_spec
from inferometer.model.spec import ModelSpec, NormKind
from inferometer.nn import attention, layers
from inferometer.nn.batch import CachedRows, RaggedBatch, prompt_batch
from inferometer.nn.cache import PagedCache
from inferometer.nn.linear import Linear
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


def norm_in_place(x: Tensor, delta: Tensor | None, *, kind: NormKind, epsilon: float, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Puts its result where the kernel does."""
    out = norm_torch(x, delta, kind=kind, epsilon=epsilon, weight=weight, bias=bias)
    return out if delta is None else delta.copy_(out)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def wire() -> None:
        monkeypatch.setattr(layers, "usable", lambda device: True)
        monkeypatch.setattr(layers, "norm", norm_in_place)

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
