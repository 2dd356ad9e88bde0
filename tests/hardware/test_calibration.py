"""Calibrations on file: what is written is read, and what is corrupt, old or of other hardware is ignored with a notice."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.hardware.calibration import Calibration, calibration_folder, load_calibrations, save_calibration
from inferometer.hardware.catalogue import catalogue
from inferometer.hardware.ceilings import ceilings
from inferometer.hardware.detect import cpu_device
from inferometer.hardware.host import Host

GOOD = Calibration(
    device="cuda:0",
    device_name="NVIDIA H100 80GB HBM3",
    slug="h100-sxm",
    measured_at="2026-01-02T03:04:05+00:00",
    torch_version="2.13.0",
    threads=None,
    seconds_spent=9.5,
    copy_bandwidth_bytes_s=2.9e12,
    read_bandwidth_bytes_s=3.0e12,
    matmul_flop_s={"float16": 700e12, "bfloat16": 720e12},
    launch_s=4e-6,
    graph_kernel_s=1e-6,
    host_to_device_bytes_s=54e9,
    device_to_host_bytes_s=53e9,
    peer_bytes_s=380e9,
    peer_sum_s=2.3e-6,
    sums_s={2: {8192: 4.4e-6, 1 << 26: 211e-6}, 4: {8192: 5.1e-6, 1 << 26: 450e-6}},
    samples={"copy": 20},
    notes=("a note",),
)
CPU = replace(GOOD, device="cpu", device_name="a CPU", slug="cpu", threads=2, graph_kernel_s=None, host_to_device_bytes_s=None)


def same(one: Calibration, other: Calibration) -> bool:
    return one.to_json() == other.to_json()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save_calibration(GOOD, "f00d", tmp_path)
    assert path == tmp_path / "f00d.json"
    loaded = load_calibrations("f00d", tmp_path)
    assert loaded.notice is None
    assert list(loaded.devices) == ["cuda:0"]
    assert same(loaded.devices["cuda:0"], GOOD)
    assert list(tmp_path.iterdir()) == [path]


def test_devices_of_one_machine_stand_side_by_side(tmp_path: Path) -> None:
    save_calibration(GOOD, "f00d", tmp_path)
    save_calibration(CPU, "f00d", tmp_path)
    save_calibration(replace(GOOD, launch_s=5e-6), "f00d", tmp_path)
    loaded = load_calibrations("f00d", tmp_path)
    assert loaded.devices["cuda:0"].launch_s == 5e-6
    assert loaded.for_slug("cpu") is loaded.devices["cpu"]
    assert loaded.for_slug("h100-sxm") is loaded.devices["cuda:0"]
    assert loaded.for_slug("t4") is None


def test_the_folder_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    assert calibration_folder() == tmp_path / "calibration"
    assert save_calibration(GOOD, "f00d").parent == tmp_path / "calibration"
    assert load_calibrations("f00d").devices


def test_nothing_on_file_is_no_notice(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        loaded = load_calibrations("f00d", folder)
        assert (dict(loaded.devices), loaded.notice) == ({}, None)


def test_other_hardware_is_a_notice(tmp_path: Path) -> None:
    path = save_calibration(GOOD, "f00d", tmp_path)
    loaded = load_calibrations("beef", tmp_path)
    assert not loaded.devices
    assert "other hardware" in (loaded.notice or "")
    path.rename(tmp_path / "beef.json")
    loaded = load_calibrations("beef", tmp_path)
    assert not loaded.devices
    assert "measured on other hardware" in (loaded.notice or "")


def edited(**changes: Any) -> str:
    document = {"schema_version": 3, "fingerprint": "f00d", "devices": {"cuda:0": GOOD.to_json()}}
    entry = document["devices"]["cuda:0"]  # type: ignore[index]
    for key, value in changes.items():
        target = document if key in document else entry
        if value is KeyError:
            del target[key]
        else:
            target[key] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ('{"schema_version": 1', "Expecting"),
        ("[]", "not an object"),
        (edited(schema_version=4), "schema version 4"),
        (edited(devices=KeyError), "devices"),
        (edited(devices=[]), "has no attribute"),
        (edited(devices={"cuda:0": 3}), ""),
        (edited(copy_bandwidth_bytes_s=KeyError), "copy_bandwidth_bytes_s is missing"),
        (edited(copy_bandwidth_bytes_s=-1), "copy_bandwidth_bytes_s must be a positive number"),
        (edited(launch_s="fast"), "launch_s must be a positive number"),
        (edited(launch_s=True), "launch_s must be a positive number"),
        (edited(read_bandwidth_bytes_s=float("nan")), "read_bandwidth_bytes_s must be a positive number"),
        (edited(matmul_flop_s={"float12": 1.0}), "unknown type 'float12'"),
        (edited(matmul_flop_s={"float16": 0}), "matmul_flop_s.float16 must be a positive number"),
        (edited(matmul_flop_s={"float16": None}), "matmul_flop_s.float16 must be a positive number"),
        (edited(matmul_flop_s=[]), "matmul_flop_s must be an object"),
        (edited(own_matmul_flop_s=[]), "own_matmul_flop_s must be an object"),
        (edited(own_matmul_flop_s={"float12": 1.0}), "own_matmul_flop_s: unknown type 'float12'"),
        (edited(own_matmul_flop_s={"float16": 0}), "own_matmul_flop_s.float16 must be a positive number"),
        (edited(notes=["fine", 5]), "notes must be a list of strings"),
        (edited(notes="fine"), "notes must be a list of strings"),
        ("[" * 100_000, "recursion"),
        (edited(device=3), "device must be a string"),
        (edited(colour="blue"), "unknown key colour"),
        (edited(sums_s=[]), "sums_s must be an object"),
        (edited(sums_s={"2": 3}), "sums_s must be an object"),
        (edited(sums_s={"two": {"8192": 1e-6}}), "'two' is no whole number"),
        (edited(sums_s={"1": {"8192": 1e-6}}), "of 2 ranks or more"),
        (edited(sums_s={"2": {}}), "of 2 ranks or more"),
        (edited(sums_s={"2": {"0": 1e-6}}), "whole numbers of bytes"),
        (edited(sums_s={"2": {"8k": 1e-6}}), "'8k' is no whole number"),
        (edited(sums_s={"2": {"8192": -1e-6}}), "sums_s.2.8192 must be a positive number"),
        (edited(sums_s={"2": {"8192": None}}), "sums_s.2.8192 must be a positive number"),
    ],
)
def test_a_corrupt_file_is_ignored_with_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "f00d.json").write_text(text)
    loaded = load_calibrations("f00d", tmp_path)
    assert not loaded.devices
    assert loaded.notice is not None
    assert reason in loaded.notice
    assert "f00d.json is ignored" in loaded.notice
    assert "\n" not in loaded.notice
    save_calibration(CPU, "f00d", tmp_path)
    assert list(load_calibrations("f00d", tmp_path).devices) == ["cpu"]


def test_a_file_of_the_first_version_has_no_sums_and_is_read(tmp_path: Path) -> None:
    document = json.loads(edited(schema_version=1, sums_s=KeyError))
    (tmp_path / "f00d.json").write_text(json.dumps(document))
    loaded = load_calibrations("f00d", tmp_path)
    assert loaded.notice is None
    assert loaded.devices["cuda:0"].sums_s == {}
    assert same(loaded.devices["cuda:0"], replace(GOOD, sums_s={}))


def test_bytes_that_are_no_text_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "f00d.json").write_bytes(b"\xff\xfe\xfa")
    assert "is ignored" in (load_calibrations("f00d", tmp_path).notice or "")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_calibration(GOOD, "f00d", tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left.*INFEROMETER_HOME"):
        save_calibration(replace(GOOD, launch_s=1.0), "f00d", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["f00d.json"]
    assert load_calibrations("f00d", tmp_path).devices["cuda:0"].launch_s == GOOD.launch_s


def test_a_home_that_is_a_file_is_the_users_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="INFEROMETER_HOME"):
        save_calibration(GOOD, "f00d", blocked / "calibration")


def test_ceilings_are_the_datasheets_until_measured() -> None:
    device = catalogue()["h100-sxm"]
    limit = ceilings(device)
    assert limit.basis == "datasheet"
    assert limit.memory_bandwidth_bytes_s == 3350e9
    assert limit.matmul_flop_s["float16"] == 989.4e12
    assert limit.launch_s is None


def test_measured_ceilings_replace_the_datasheets() -> None:
    device = catalogue()["h100-sxm"]
    limit = ceilings(device, GOOD)
    assert limit.basis == "calibration, datasheet"
    assert limit.memory_bandwidth_bytes_s == 3.0e12
    assert limit.matmul_flop_s["bfloat16"] == 720e12
    assert limit.matmul_flop_s["fp8"] == 1978.9e12
    assert limit.launch_s == 4e-6
    everything = replace(GOOD, matmul_flop_s=dict.fromkeys(limit.matmul_flop_s, 1e14))
    assert ceilings(device, everything).basis == "calibration"


def test_the_cpu_has_ceilings_only_when_measured() -> None:
    device = cpu_device(Host(model="x", vendor="y", cores=2, flags=(), memory_bytes=1 << 34, cache_bytes=None))
    assert ceilings(device).memory_bandwidth_bytes_s is None
    assert dict(ceilings(device).matmul_flop_s) == {}
    assert ceilings(device, CPU).matmul_flop_s["float16"] == 700e12
    assert ceilings(device, CPU).basis == "calibration"


def test_a_limit_is_what_the_faster_kernels_reach_and_the_librarys_rate_stays_known() -> None:
    device = cpu_device(Host(model="x", vendor="y", cores=2, flags=(), memory_bytes=1 << 34, cache_bytes=None))
    found = ceilings(device, replace(CPU, own_matmul_flop_s={"float16": 800e12, "bfloat16": 600e12}))
    assert found.matmul_flop_s == {"float16": 800e12, "bfloat16": 720e12}
    assert found.library_flop_s == {"float16": 700e12, "bfloat16": 720e12}
    assert found.own_flop_s == {"float16": 800e12, "bfloat16": 600e12}


def test_a_file_of_the_second_version_has_no_products_of_ours_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "f00d.json").write_text(edited(schema_version=2, own_matmul_flop_s=KeyError))
    loaded = load_calibrations("f00d", tmp_path)
    assert loaded.notice is None
    assert same(loaded.devices["cuda:0"], GOOD)


def test_a_calibration_of_another_card_is_refused() -> None:
    with pytest.raises(ValueError, match="h100-sxm, not of t4"):
        ceilings(catalogue()["t4"], GOOD)
