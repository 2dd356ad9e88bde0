"""Which link cards talk over, and how fast it is in one direction."""

from __future__ import annotations

import pytest

from inferometer.errors import UserError
from inferometer.hardware.catalogue import catalogue
from inferometer.hardware.links import host_link, link_between, link_kinds, link_names


@pytest.mark.parametrize(
    ("slug", "gpus", "name", "kind", "gb_s"),
    [
        ("h100-sxm", 8, None, "nvlink4", 450),
        ("h100-sxm", 8, "nvswitch", "nvlink4", 450),
        ("h100-sxm", 8, "nvlink", "nvlink4", 450),
        ("h100-sxm", 8, "pcie5", "pcie5", 63.0154),
        ("h100-sxm", 8, "pcie4", "pcie4", 31.5077),
        ("h100-sxm", 8, "pcie", "pcie5", 63.0154),
        ("a100-sxm-80gb", 8, None, "nvlink3", 300),
        ("b200", 8, None, "nvlink5", 900),
        ("v100-sxm-32gb", 8, "nvswitch", "nvlink2", 150),
        ("rtx-a6000", 2, None, "nvlink3", 56.25),
        ("rtx-a6000", 4, None, "pcie4", 31.5077),
        ("rtx-a5000", 8, "pcie4", "pcie4", 31.5077),
        ("rtx-2080-ti", 2, "nvlink", "nvlink2", 50),
        ("rtx-4090", 2, None, "pcie4", 31.5077),
        ("mi300x", 8, None, "infinity-fabric4", 448),
    ],
)
def test_a_link(slug: str, gpus: int, name: str | None, kind: str, gb_s: float) -> None:
    link = link_between(catalogue()[slug], gpus, name)
    assert link.kind == kind
    assert link.bandwidth_bytes_s == pytest.approx(gb_s * 1e9, rel=1e-5)
    assert link.joins >= gpus


@pytest.mark.parametrize(
    ("slug", "gpus", "name", "message"),
    [
        ("rtx-4090", 2, "nvlink", "--link nvlink: rtx-4090 has no such link; it has pcie4"),
        ("t4", 2, "pcie4", "--link pcie4: t4 has no such link; it has pcie3"),
        ("rtx-a6000", 4, "nvlink", "bridge joins 2 of rtx-a6000, not 4; for 4 use --link pcie4"),
        ("rtx-a6000", 2, "nvswitch", "--link nvswitch: rtx-a6000 has no such link"),
        ("h100-sxm", 2, "nvlink3", "--link nvlink3: h100-sxm has no such link"),
        ("h100-sxm", 2, "carrier-pigeon", "--link carrier-pigeon: no such link; one of nvlink, pcie"),
        ("h100-sxm", 1000, None, "--gpus 1000: h100-sxm has no link"),
    ],
)
def test_a_link_that_is_not_there(slug: str, gpus: int, name: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        link_between(catalogue()[slug], gpus, name)


def test_every_kind_has_a_source_and_a_name_for_the_flag() -> None:
    for kind in link_kinds().values():
        assert kind.source
        assert (kind.latency_s is None) == (kind.latency_source is None)
        assert kind.kind in link_names()
    assert {"nvlink", "nvswitch", "pcie", "pcie3", "pcie4", "pcie5", "nvlink2", "nvlink3", "nvlink4", "nvlink5"} <= set(link_names())


def test_generations_of_pcie_double() -> None:
    kinds = link_kinds()
    assert kinds["pcie4"].bandwidth_bytes_s == pytest.approx(2 * kinds["pcie3"].bandwidth_bytes_s, rel=1e-5)
    assert kinds["pcie5"].bandwidth_bytes_s == pytest.approx(4 * kinds["pcie3"].bandwidth_bytes_s, rel=1e-5)
    assert 16 * kinds["pcie3"].bandwidth_bytes_s == pytest.approx(8e9 * 16 / 8 * 128 / 130, rel=1e-5)


def test_the_host_link() -> None:
    link = host_link(catalogue()["h100-sxm"])
    assert link is not None
    assert link.kind == "pcie5"
