"""What else decides a host's speed, from trees that stand in for /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.hardware.host_state import read_governor, read_load
from inferometer.hardware.reading import Reading


def test_governors_are_named_once(tmp_path: Path) -> None:
    assert read_governor(tmp_path) is None
    for number, name in enumerate(("performance\n", "powersave\n", "performance\n")):
        folder = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(name)
    assert read_governor(tmp_path) == "performance, powersave"
    (tmp_path / "sys/devices/system/cpu/cpufreq/policy1/scaling_governor").unlink()
    assert read_governor(tmp_path) == "performance"


@pytest.mark.parametrize(("text", "value"), [("0.25 0.31 0.35 2/345 123\n", 0.25), ("", None), ("busy 1 2", None)])
def test_load(tmp_path: Path, text: str, value: float | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text(text)
    reason = None if value is not None else f"{tmp_path}/proc/loadavg does not say"
    assert read_load(tmp_path) == Reading(value, "threads", reason)


def test_load_of_a_system_without_proc(tmp_path: Path) -> None:
    assert read_load(tmp_path).value is None
