"""One product or two: measured once a size, the second time that it comes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from inferometer.engine.sweep_cuts import ALIKE, MOST_KNOWN, MapClock, SweepCuts
from inferometer.engine.sweep_graphs import FEW_TOKENS, PROMPT_TOKENS, worth_recording
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer


class Waves:
    """Tiles of 128 rows: two products are faster than one that begins another."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def faster(self, maps: Sequence[Linear], first: int, second: int) -> bool:
        self.asked.append((first, second))
        return maps[0].weight.shape[0] > 4 and -(-second // 128) < -(-(first + second) // 128)


def model(layers: int = 2) -> Any:
    parts = [nn.ModuleList([Linear(8, 4, bias=True), Linear(4, 8, bias=False)]) for _ in range(layers)]
    return SimpleNamespace(layers=nn.ModuleList(parts))


def cuts_of(made: Any) -> list[dict[int, int]]:
    return [each.cuts for each in made.layers[0]]


def test_nothing_is_measured_for_sizes_that_come_once_or_for_one_kind_alone() -> None:
    waves, made = Waves(), model()
    cuts = SweepCuts(cast(Transformer, made), waves.faster)
    for tokens in range(600, 700):
        cuts.meet(8, tokens)
        cuts.meet(0, 1024)
        cuts.meet(8, 0)
    assert waves.asked == []
    assert cuts_of(made) == [{}, {}]


def test_each_map_is_cut_where_that_is_faster_in_all_layers() -> None:
    waves, made = Waves(), model(3)
    cuts = SweepCuts(cast(Transformer, made), waves.faster)
    for _ in range(3):
        cuts.meet(8, 1024)
    assert waves.asked == [(8, 1024)] * 2  # once a map
    assert cuts_of(made) == [{}, {1032: 8}]
    assert [layer[1].cuts for layer in made.layers] == [{1032: 8}] * 3
    cuts.meet(ALIKE, 1024)  # the same, nearly
    assert len(waves.asked) == 2
    assert cuts_of(made)[1] == {1032: 8, 1024 + ALIKE: ALIKE}
    for _ in range(2):
        cuts.meet(8, 1000)  # 1008 rows are in the same wave
    assert cuts_of(made)[1] == {1032: 8, 1024 + ALIKE: ALIKE}


def test_what_is_known_is_bounded() -> None:
    made = model()
    cuts = SweepCuts(cast(Transformer, made), Waves().faster)
    for _ in range(2):
        for tokens in range(1, MOST_KNOWN + 1):
            cuts.meet(1, tokens)
    assert len(cuts._known) == MOST_KNOWN
    cuts.meet(1, MOST_KNOWN + 1)
    assert len(cuts._known) == 1
    assert cuts_of(made) == [{}, {}]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "silu"])
@settings(deadline=None)
@given(first=st.integers(1, 6), second=st.integers(1, 9), adds=st.booleans())
def test_rows_in_two_parts_are_the_rows(bias: bool, activation: Any, first: int, second: int, adds: bool) -> None:
    with torch.inference_mode():
        whole, parted = Linear(12, 7, bias=bias), Linear(12, 7, bias=bias)
        for each in whole.parameters():
            nn.init.normal_(each)
        parted.load_state_dict(whole.state_dict())
        parted.cuts[first + second] = first
        x = torch.randn(first + second, 12)
        residual = torch.randn(first + second, 7) if adds else None
        torch.testing.assert_close(
            parted(x, activation=activation, residual=residual), whole(x, activation=activation, residual=residual), rtol=1e-5, atol=1e-5
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.inference_mode()
def test_gpu_rows_in_two_parts_are_the_rows_and_the_clock_leaves_no_cut() -> None:
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    made = model(4)
    for bias, activation in ((True, "relu"), (True, "gelu_tanh"), (True, None), (False, None)):
        linear = Linear(512, 1024, bias=bias).to(device, dtype)
        for each in linear.parameters():
            nn.init.normal_(each, std=0.05)
        x = torch.randn(1024 + 72, 512, device=device, dtype=dtype)
        whole = linear(x, activation=activation)
        linear.cuts[1096] = 72
        torch.testing.assert_close(linear(x, activation=activation), whole, rtol=2e-2, atol=2e-2)
    for layer in made.layers:
        layer.to(device, dtype)
    stands_in = SimpleNamespace(layers=made.layers, device=device, dtype=dtype)
    clock = MapClock(cast(Transformer, stands_in))
    assert isinstance(clock.faster_in_two([layer[0] for layer in made.layers], 72, 1024), bool)
    assert cuts_of(made) == [{}, {}]


def test_larger_models_have_fewer_recorded_sizes() -> None:
    """Of opt-125m, opt-1.3b, opt-6.7b and opt-30b: the GPU is busy for longer with each token."""
    assert [worth_recording(12 * hidden**2) for hidden in (768, 2048, 4096, 7168)] == [PROMPT_TOKENS[-1], 2560, 640, FEW_TOKENS]
