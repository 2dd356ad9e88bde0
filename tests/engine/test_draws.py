"""Random numbers held ahead: always those of seed and position, however rows come, go and jump."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.engine.draws import AHEAD, DRAWS, Draws
from inferometer.engine.random import signed, uniform

seeds_of = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5)


def expected(seeds: list[int], positions: list[int]) -> Tensor:
    keys = torch.tensor([signed(seed) for seed in seeds])[:, None]
    return uniform(keys, torch.tensor(positions)[:, None] + torch.arange(DRAWS))


def check(draws: Draws, seeds: list[int], positions: list[int], wanted: list[bool]) -> None:
    window = draws.window(torch.tensor(positions), torch.tensor(wanted))
    assert window.shape == (len(seeds), DRAWS)
    assert torch.equal(window[wanted], expected(seeds, positions)[wanted])


@settings(deadline=None, max_examples=30)
@given(seeds_of, seeds_of, st.data())
def test_a_window_holds_the_numbers_of_seed_and_position_whatever_happened_before(
    seeds: list[int], others: list[int], data: st.DataObject
) -> None:
    draws, positions = Draws.build(seeds), [0] * len(seeds)
    moves = st.sampled_from([0, 1, 5, DRAWS - 1, DRAWS, DRAWS + 1, AHEAD, -3])
    for change in ("nothing", "select", "extend", "nothing"):
        if change == "select":
            order = data.draw(st.permutations(range(len(seeds))))[: data.draw(st.integers(1, len(seeds)))]
            seeds, positions = [seeds[i] for i in order], [positions[i] for i in order]
            draws = draws.select(torch.tensor(order))
        elif change == "extend":
            draws = draws.extend(Draws.build(others))
            seeds, positions = seeds + others, positions + [2**40] * len(others)
        for _ in range(2):
            positions = [max(0, at + data.draw(moves)) for at in positions]
            check(draws, seeds, positions, [data.draw(st.booleans()) for _ in seeds])
            check(draws, seeds, positions, [True] * len(seeds))


def test_rows_draw_only_when_they_run_out_and_only_those_that_are_wanted() -> None:
    draws = Draws.build([7, 8])
    check(draws, [7, 8], [10, 10], [True, False])
    assert draws.starts.tolist() == [10, -AHEAD]
    check(draws, [7, 8], [10 + AHEAD - DRAWS, 3], [True, True])
    assert draws.starts.tolist() == [10, 3]
    check(draws, [7, 8], [11 + AHEAD - DRAWS, 4], [True, True])
    assert draws.starts.tolist() == [11 + AHEAD - DRAWS, 3]


def test_no_rows_are_no_special_case() -> None:
    draws = Draws.build([]).extend(Draws.build([1]).select(torch.tensor([], dtype=torch.int64)))
    assert draws.window(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)).shape == (0, DRAWS)
