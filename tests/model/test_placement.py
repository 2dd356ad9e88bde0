"""Placement: every byte of every layer is somewhere, exactly as many as were asked for, evenly spread."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.model.placement import LayerPlace, Placement, least_streamed, ring, share, spread

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=100)


@given(SIZES, st.data())
def test_no_byte_is_lost_and_none_is_twice(sizes: list[int], data: st.DataObject) -> None:
    streamed = data.draw(st.integers(0, sum(sizes)))
    disk = data.draw(st.integers(0, streamed))
    placement = Placement.of(sizes, streamed_bytes=streamed, disk_bytes=disk)
    assert [layer.bytes for layer in placement.layers] == sizes
    assert placement.streamed_bytes == streamed
    assert placement.disk_bytes == disk
    assert placement.host_bytes == streamed - disk
    assert placement.resident_bytes == sum(sizes) - streamed
    assert placement.device_bytes == placement.resident_bytes + placement.ring_slots * placement.slot_bytes


@given(st.integers(1, 200), st.integers(1, 10**9), st.data())
def test_of_equal_layers_one_at_most_lies_on_both_sides(count: int, size: int, data: st.DataObject) -> None:
    streamed = data.draw(st.integers(0, count * size))
    placement = Placement.of([size] * count, streamed_bytes=streamed)
    assert sum(0 < layer.streamed < size for layer in placement.layers) == (streamed % size > 0)


@given(st.integers(2, 100), st.integers(1, 1000), st.floats(0, 1))
def test_streamed_layers_are_spread_evenly(count: int, size: int, fraction: float) -> None:
    wanted = share(count * size, fraction)
    whole = [number for number, taken in enumerate(spread([size] * count, wanted)) if taken == size]
    gaps = [after - before for before, after in pairwise(whole)]
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_the_split_layer_and_the_interleaving_of_an_example() -> None:
    placement = Placement.of([100] * 5, streamed_bytes=240, disk_bytes=110)
    assert placement.layers == (LayerPlace(60, 30, 10), LayerPlace(100), LayerPlace(0, 100), LayerPlace(100), LayerPlace(0, 0, 100))
    assert placement.streamed_layers == (0, 2, 4)
    assert placement.slot_of == {0: 0, 2: 1, 4: 0}
    assert placement.device_bytes == 260 + 200


@given(st.integers(0, 60), st.integers(2, 5))
def test_neighbours_in_the_ring_have_different_slots(layers: int, slots: int) -> None:
    found = ring(layers, slots)
    assert len(found) == layers
    assert set(found) == set(range(min(layers, slots)))
    assert all(one != other for one, other in pairwise(found))
    if layers > 1 and (slots > 2 or layers % 2 == 0):
        assert found[-1] != found[0]


@given(SIZES, st.integers(0, 10**10), st.integers(2, 3))
def test_what_must_be_streamed_makes_it_fit(sizes: list[int], room: int, slots: int) -> None:
    wanted = least_streamed(sizes, room, slots)
    if wanted is None:
        assert sum(sizes) > room
        assert slots * max(sizes) > room
        return
    assert Placement.of(sizes, streamed_bytes=wanted, slots=slots).device_bytes <= room


@given(st.integers(3, 50), st.integers(1, 1000), st.integers(1, 10**5))
def test_of_equal_layers_a_byte_less_would_not_fit(count: int, size: int, room: int) -> None:
    wanted = least_streamed([size] * count, room)
    if wanted and wanted > 2 * size:
        assert Placement.of([size] * count, streamed_bytes=wanted - 1).device_bytes > room


def test_a_share_is_the_nearest_byte() -> None:
    assert share(10, 0.25) == 2
    assert share(1000, 0.4) == 400
    assert share(3 * 10**11 + 1, 1.0) == 3 * 10**11 + 1


def test_impossible_placements_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be placed"):
        spread([1, 2], 4)
    with pytest.raises(ValueError, match="cannot be placed"):
        Placement.of([10], streamed_bytes=5, disk_bytes=6)
    with pytest.raises(ValueError, match="2 slots"):
        Placement((LayerPlace(1),), slots=1)
    with pytest.raises(ValueError, match="fewer than 0"):
        LayerPlace(-1)
