"""What sending between devices takes: a floor, a time a hop and the bytes over the bandwidth, by the better algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferometer.hardware.device import Topology
from inferometer.hardware.links import Link

# Of a link's wire rate, what large collectives carry. NVSwitch: 222 of 300 GB/s on 8 A100s, 349 of 450 on 4 H100s (NCCL 2.27.3,
# aiconfigurator's a100_sxm and h100_sxm tables). Through the host over PCIe 4: 14.3 of 31.5 GB/s on 8 RTX A5000s (TorchCAP's profile).
_SHARE: dict[Topology, float] = {"switch": 0.75, "mesh": 0.7, "bridge": 0.75, "host": 0.45}
# NCCL's floor and a hop of its rings: 10 us for 2 and 22 us for 8 A100s over NVLink, 43 us for 8 A5000s over PCIe.
_RING_FLOOR_S = 8e-6
_HOP_S: dict[Topology, float] = {"switch": 1.0e-6, "mesh": 1.0e-6, "bridge": 1.0e-6, "host": 2.5e-6}
# Engines of their own kernels let every device read all others' data at once: 4.5 to 5.7 us in a recorded graph (vLLM 0.14.0 and 0.24.0,
# TensorRT-LLM 1.2.0, same tables), for messages that are small.
_ONE_SHOT_FLOOR_S = 4.5e-6
# Reading from many devices at once carries half of what a ring does.
_ONE_SHOT_SHARE = 0.5

# This product's own, on two H200s with 18 links (benchmarks/measurements/collectives-h200.jsonl): a sum of one row with residual and norm
# 4.0 to 4.6 us behind others of its kind and 4.4 us between two products, 8.5 to 9.3 us for 1 MiB; of one word it takes 1.9 to 2.3 us.
# Shares are of what the wires carry: the copy engines, 64 MiB alone in 176 us, and launches that write words.
_PEER_FLOOR_S = 4.4e-6
# Each further rank is one more to send to and to wait for: torch's one-shot sums of 8 KiB in graphs take 6.5 us over two H200s and 7.6 over
# four, those of 64 KiB 6.6 and 8.4.
_FURTHER_S = 0.55e-6
_WORD_S = 2.3e-6
_PEER_SHARE = 0.51
_COPY_SHARE = 0.85
# A large sum is one launch, in which each device is sent its rows of all parts, adds them up and norms them, and sends them to all: 31 us
# for 1 MiB, 41 for 4, 77 for 16 and 211 for 64, each way over the link at 0.94 of what copies alone carry. All of n devices send their
# parts to the first, then to the second: what a device is sent at a time comes from all others, and what it sends waits for that. The last
# has sent its parts after the n (n - 1) / 2 that pass one receiver after another, not after its own n - 1. Of two both are one. Results go
# to all row by row.
_ROWS_FLOOR_S = 30e-6
# That is of sums behind each other. In a model's prompts ranks wait for each other besides: what they have done since the last sum ends at
# another time on each. Two H200s take 14.5, 28.5, 48.4, 94.7, 189.5 and 381.6 ms for 1 to 32 prompts of 1024 of bloomz-7b1, one of them
# 21.1, 40.0, 80.4, 166.9, 338.6 and 701.3 (results/tensor-parallel): beside sums as long as behind each other that leaves 0 to 40 us for
# each of 61. Four took 74.3 ms for 8 (benchmarks/measurements) where 62.4 would be expected, in runs in which the host stood still: of two
# that took 5 ms of such a sweep, which leaves four some 110 us a sum.
_APART_S = 15e-6
_FURTHER_APART_S = 45e-6
# More than two may add up by the library instead, which norms nothing; a call that is not recorded takes as much more than one that is.
_CALL_S = 9e-6
_ROWS_SHARE = 0.94
_ROWS_BYTES = 64 << 20  # of a launch at most
_PROMPTS_BYTES = 4 << 20  # of decode steps are smaller ones, which were measured between products


def all_reduce_s(payload_bytes: float, devices: int, link: Link, *, one_shot: bool) -> float:
    """Seconds for the sum of `payload_bytes` over `devices`. one_shot: the stack has kernels for small messages."""
    bandwidth = link.bandwidth_bytes_s * _SHARE[link.topology]
    hop = _HOP_S[link.topology]
    ring = _RING_FLOOR_S + 2 * (devices - 1) * hop + 2 * (devices - 1) / devices * payload_bytes / bandwidth
    if not one_shot or link.topology == "host":
        return ring
    # From more devices at once, each read gets a smaller part of what the links carry together.
    one_shot_s = _ONE_SHOT_FLOOR_S + math.sqrt(devices - 1) * payload_bytes / (bandwidth * _ONE_SHOT_SHARE)
    return min(ring, one_shot_s)


def reaches(link: Link) -> bool:
    """Whether devices write into each other's memory over it."""
    return link.topology != "host"


def measured_sum_s(payload_bytes: float, devices: int, link: Link) -> float | None:
    """Seconds of a sum of `payload_bytes` over `devices` as sums were measured over this link; None where none over so many were.

    What lies between two sizes is taken in the proportion of its bytes; what is larger than the largest goes in as many launches.
    """
    measured = link.sums_over(devices)
    if not measured:
        return None
    largest = measured[-1][0]
    if payload_bytes > largest:
        whole, rest = divmod(payload_bytes, largest)
        last = measured_sum_s(rest, devices, link) if rest else 0.0
        assert last is not None, "there are sizes"
        return whole * _never_less(measured)[-1][1] + last
    known = _never_less(measured)
    before, least = known[0]
    for nbytes, seconds in known:
        if payload_bytes <= nbytes:
            share = (payload_bytes - before) / (nbytes - before) if payload_bytes > before else 1.0
            return least + share * (seconds - least)
        before, least = nbytes, seconds
    return least


def _never_less(measured: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same without what noise has made of them: more bytes take no less."""
    return [(nbytes, max(seconds for _, seconds in measured[: i + 1])) for i, (nbytes, _) in enumerate(measured)]


def peer_sum_s(payload_bytes: float, devices: int, link: Link) -> float:
    """Seconds of a sum of `payload_bytes` over `devices` that write into each other's memory, residual and norm included."""
    measured = measured_sum_s(payload_bytes, devices, link)
    if measured is not None:
        return measured
    floor = _PEER_FLOOR_S + (devices - 2) * _FURTHER_S + (0.0 if link.word_s is None else link.word_s - _WORD_S)
    at_once = floor + (devices - 1) * payload_bytes / (_copies(link) * _PEER_SHARE / _COPY_SHARE)
    sent = (devices * (devices - 1) / 2 + devices - 1) / devices * payload_bytes
    launches = max(1, math.ceil(payload_bytes / _ROWS_BYTES))
    return min(at_once, launches * _ROWS_FLOOR_S + sent / (_copies(link) * _ROWS_SHARE))


def normed_sum_s(payload_bytes: float, devices: int, link: Link, norm_s: float) -> float:
    """Seconds of such a sum in a model's layer, waiting for the others included, in the way that measuring would choose.

    norm_s: of residual and norm as a launch of its own, which the library's sums leave to be done.
    """
    measured = measured_sum_s(payload_bytes, devices, link)
    by_rows = peer_sum_s(payload_bytes, devices, link) if measured is None else measured
    apart = _APART_S + (devices - 2) * _FURTHER_APART_S if payload_bytes > _PROMPTS_BYTES else 0.0
    if devices == 2 or measured is not None:
        return by_rows + apart
    return apart + min(by_rows, all_reduce_s(payload_bytes, devices, link, one_shot=False) + _CALL_S + norm_s)


def _copies(link: Link) -> float:
    """Bytes/s of the copy engines."""
    return link.copy_bytes_s or link.bandwidth_bytes_s * _COPY_SHARE


def gather_s(sent_bytes: float, devices: int, link: Link) -> float:
    """Seconds for an all-gather in which each device sends `sent_bytes` in all."""
    return _RING_FLOOR_S + (devices - 1) * _HOP_S[link.topology] + sent_bytes / (link.bandwidth_bytes_s * _SHARE[link.topology])


def transfer_s(sent_bytes: float, link: Link) -> float:
    """Seconds for one device to send `sent_bytes` to the next."""
    return _RING_FLOOR_S + _HOP_S[link.topology] + sent_bytes / (link.bandwidth_bytes_s * _SHARE[link.topology])
