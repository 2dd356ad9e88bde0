"""Collectives: published all-reduces, and the switch between algorithms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.estimate.collective import all_reduce_s, gather_s, measured_sum_s, normed_sum_s, peer_sum_s, reaches, transfer_s
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import link_between

A100 = link_between(find_device("a100-sxm-80gb"), 8)
H200 = link_between(find_device("h200"), 2)
A5000 = link_between(find_device("rtx-a5000"), 8, "pcie4")


def test_a_large_sum_moves_at_the_bus_bandwidth() -> None:
    payload = 512 << 20
    assert 2 * 7 / 8 * payload / all_reduce_s(payload, 8, A100, one_shot=False) / 1e9 == pytest.approx(222, rel=0.05)
    assert 2 * 7 / 8 * payload / all_reduce_s(payload, 8, A5000, one_shot=False) / 1e9 == pytest.approx(14.2, rel=0.05)


def test_a_small_sum_takes_the_floor() -> None:
    assert all_reduce_s(1024, 8, A5000, one_shot=False) * 1e6 == pytest.approx(43, rel=0.1)
    assert all_reduce_s(1024, 8, A100, one_shot=False) * 1e6 == pytest.approx(22, rel=0.1)
    assert all_reduce_s(1024, 8, A100, one_shot=True) * 1e6 < 6


def test_kernels_for_small_sums_need_a_link_between_devices() -> None:
    assert all_reduce_s(1024, 8, A5000, one_shot=True) == all_reduce_s(1024, 8, A5000, one_shot=False)


def test_the_algorithm_changes_with_the_size() -> None:
    large = 256 << 20
    assert all_reduce_s(large, 8, A100, one_shot=True) == all_reduce_s(large, 8, A100, one_shot=False)


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 20), st.sampled_from([2, 4, 8]), st.booleans())
def test_more_bytes_never_take_less(payload: int, more: int, devices: int, one_shot: bool) -> None:
    assert all_reduce_s(payload + more, devices, A100, one_shot=one_shot) >= all_reduce_s(payload, devices, A100, one_shot=one_shot)
    assert gather_s(payload + more, devices, A100) > gather_s(payload, devices, A100)
    assert transfer_s(payload + more, A100) > transfer_s(payload, A100)


def test_sums_written_into_others_memory_take_what_was_measured() -> None:
    for kib, us in ((8, 4.4), (256, 5.4), (1024, 8.9)):  # benchmarks/collectives.py on two H200s, between products
        assert peer_sum_s(kib << 10, 2, H200) * 1e6 == pytest.approx(us, rel=0.1)


def test_large_sums_take_what_was_measured_by_themselves() -> None:
    """benchmarks/collectives.py on two H200s, residual and norm included; no product is near."""
    for mib, us in ((4, 30.6), (16, 77.4), (64, 211.0)):
        assert peer_sum_s(mib << 20, 2, H200) * 1e6 == pytest.approx(us, rel=0.3 if mib < 16 else 0.06)


def test_a_sum_that_no_launch_holds_is_several() -> None:
    once, twice = peer_sum_s(64 << 20, 4, H200), peer_sum_s(128 << 20, 4, H200)
    assert twice == pytest.approx(2 * once)
    assert peer_sum_s((64 << 20) + 16, 4, H200) - once == pytest.approx(30e-6, rel=0.01)


def test_what_all_send_to_one_rank_first_waits_there() -> None:
    """Parts pass n (n - 1) / 2 after another; results go to all by turns, n - 1 of them. Each is an n-th."""
    floor = 30e-6
    two, four, eight = (peer_sum_s(64 << 20, devices, H200) - floor for devices in (2, 4, 8))
    assert four / two == pytest.approx(((6 + 3) / 4) / ((1 + 1) / 2))
    assert eight / two == pytest.approx(((28 + 7) / 8) / ((1 + 1) / 2))


def send_to_the_first_first(devices: int) -> int:
    """Parts' time until the last has been sent, where each sends one part to each other in one order, over a link that a receiver's others
    share: stepped through by what passes at a time."""
    left = {(sender, to): 1.0 for sender in range(devices) for to in range(devices) if sender != to}
    time = 0.0
    while left:
        now = {}
        for sender in range(devices):
            waiting = [to for to in range(devices) if (sender, to) in left]
            if waiting:
                now[sender, waiting[0]] = 1.0
        shared = {pair: 1 / sum(to == pair[1] for _, to in now) for pair in now}
        step = min(left[pair] / rate for pair, rate in shared.items())
        time += step
        left = {pair: part - step * shared.get(pair, 0.0) for pair, part in left.items()}
        left = {pair: part for pair, part in left.items() if part > 1e-9}
    return round(time)


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_the_formula_is_what_passes_when_all_begin_with_the_first(devices: int) -> None:
    assert send_to_the_first_first(devices) == devices * (devices - 1) // 2


MEASURED = replace(H200, sums=((2, ((8192, 4e-6), (1 << 20, 10e-6), (1 << 24, 80e-6))), (4, ((8192, 5e-6), (1 << 20, 4e-6)))))


@pytest.mark.parametrize(
    ("payload", "us"),
    [(8, 4), (8192, 4), (1 << 20, 10), (1 << 24, 80), ((1 << 20) + 15 * (1 << 19), 45), (3 << 24, 240), ((1 << 24) + 8, 84)],
)
def test_measured_sums_are_what_they_were_and_between_them_by_their_bytes(payload: int, us: float) -> None:
    assert peer_sum_s(payload, 2, MEASURED) * 1e6 == pytest.approx(us)


def test_a_models_sum_takes_the_way_that_measuring_would_choose() -> None:
    """Of two the library sends as much as rows do and norms nothing; of more it may be faster, its norm included."""
    small, large = 8 << 10, 64 << 20
    assert normed_sum_s(small, 2, H200, 1.0) == peer_sum_s(small, 2, H200)
    waiting = normed_sum_s(large, 2, H200, 0.0) - peer_sum_s(large, 2, H200)
    assert 0 < waiting < 40e-6
    longer = normed_sum_s(large, 4, H200, 1.0) - peer_sum_s(large, 4, H200)  # for more ranks
    assert 2 * waiting < longer < 130e-6
    library = all_reduce_s(large, 4, H200, one_shot=False)
    assert library < normed_sum_s(large, 4, H200, 60e-6) - longer - 60e-6 < library + 10e-6
    assert normed_sum_s(1 << 24, 2, MEASURED, 1.0) == pytest.approx(80e-6 + waiting)


def test_each_further_rank_is_waited_for() -> None:
    """torch's one-shot sums of 8 KiB over two and four H200s differ by 1.1 us."""
    two, four = (peer_sum_s(8 << 10, devices, H200) for devices in (2, 4))
    assert (four - two) * 1e6 == pytest.approx(1.1, rel=0.1)


def test_of_other_numbers_of_devices_the_link_says_it() -> None:
    assert measured_sum_s(8192, 3, MEASURED) is None
    assert peer_sum_s(1 << 20, 3, MEASURED) == peer_sum_s(1 << 20, 3, H200)


@given(st.integers(1, 1 << 26), st.integers(1, 1 << 26), st.sampled_from([2, 4]))
def test_measured_or_not_a_larger_sum_never_takes_less(payload: int, more: int, devices: int) -> None:
    assert peer_sum_s(payload + more, devices, MEASURED) >= peer_sum_s(payload, devices, MEASURED) * (1 - 1e-12)


def test_devices_write_into_each_others_memory_unless_the_host_lies_between() -> None:
    assert reaches(H200)
    assert not reaches(A5000)


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 24), st.sampled_from([2, 4, 8]))
def test_a_larger_sum_never_takes_less(payload: int, more: int, devices: int) -> None:
    assert peer_sum_s(payload + more, devices, A100) >= peer_sum_s(payload, devices, A100)


def test_a_measured_link_takes_the_place_of_what_is_known_of_others() -> None:
    slower = replace(H200, copy_bytes_s=H200.bandwidth_bytes_s * 0.85 / 2, word_s=3.3e-6)
    assert peer_sum_s(8, 2, slower) - peer_sum_s(8, 2, H200) == pytest.approx(1e-6, rel=0.01)
    assert peer_sum_s(1 << 20, 2, slower) > 1.5 * peer_sum_s(1 << 20, 2, H200)
    as_known = replace(H200, copy_bytes_s=H200.bandwidth_bytes_s * 0.85, word_s=2.3e-6)
    assert peer_sum_s(1 << 20, 2, as_known) == pytest.approx(peer_sum_s(1 << 20, 2, H200))
