"""What is here, read from stand-ins for /proc, /sys, nvidia-smi and NVML."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from inferometer.errors import UserError
from inferometer.hardware.detect import Machine, cpu_device, detect
from inferometer.hardware.host import Host, read_host
from inferometer.hardware.nvidia import Gpu, NoDriver, SmiDriver, visible_gpus

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)   Platinum 8480+
flags\t\t: fpu sse2 avx avx2 fma avx512f avx512_bf16 amx_bf16

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)   Platinum 8480+
flags\t\t: fpu sse2 avx avx2 fma avx512f avx512_bf16 amx_bf16
"""
SMI = """0, NVIDIA H100 80GB HBM3, GPU-aaaa1111, 81559, 580.159.04
1, NVIDIA H100 80GB HBM3, GPU-bbbb2222, 81559, 580.159.04
2, NVIDIA Imaginary, [N/A], [N/A], 580.159.04
"""


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def machine_tree(root: Path) -> Path:
    cache = "sys__devices__system__cpu__cpu0__cache__index"
    files = {f"{cache}{index}__level": f"{level}\n" for index, level in enumerate((1, 1, 2, 3))}
    files |= {f"{cache}{index}__size": size for index, size in enumerate(("48K\n", "32K\n", "2048K\n", "107520K\n"))}
    return tree(root, proc__cpuinfo=CPUINFO, proc__meminfo="MemTotal:       131981740 kB\nMemFree: 3 kB\n", **files)


def test_the_host(tmp_path: Path) -> None:
    host = read_host(machine_tree(tmp_path), affinity=2)
    assert host.model == "Intel(R) Xeon(R) Platinum 8480+"
    assert host.vendor == "Intel"
    assert host.cores == 2
    assert host.memory_bytes == 131981740 * 1024
    assert host.cache_bytes == 107520 * 1024
    assert host.flags == ("avx", "fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert host.multiplies_bfloat16


def test_a_control_group_limits_cores_and_memory(tmp_path: Path) -> None:
    machine_tree(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1073741824\n")
    host = read_host(tmp_path, affinity=8)
    assert (host.cores, host.memory_bytes) == (2, 1 << 30)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    host = read_host(tmp_path, affinity=8)
    assert (host.cores, host.memory_bytes) == (8, 131981740 * 1024)


def test_an_arm_host(tmp_path: Path) -> None:
    text = "processor\t: 0\nCPU implementer\t: 0x41\nFeatures\t: fp asimd sve bf16 i8mm\n"
    host = read_host(tree(tmp_path, proc__cpuinfo=text), affinity=4)
    assert host.vendor == "Arm"
    assert host.flags == ("asimd", "sve", "bf16", "i8mm")
    assert host.multiplies_bfloat16


def test_an_empty_tree_leaves_unknown_what_it_does_not_say(tmp_path: Path) -> None:
    host = read_host(tmp_path, affinity=3)
    assert (host.cores, host.memory_bytes, host.cache_bytes, host.flags, host.vendor) == (3, None, None, (), "unknown")
    assert host.model
    with pytest.raises(UserError, match="TOML"):
        cpu_device(host)


def test_this_machine_is_a_device_without_a_datasheet(tmp_path: Path) -> None:
    device = cpu_device(read_host(machine_tree(tmp_path), affinity=2))
    assert device.slug == "cpu"
    assert device.memory_bytes == 131981740 * 1024
    assert device.multiprocessors == 2
    assert device.memory_bandwidth_bytes_s is None
    assert device.matmul_flop_s("float32") is None
    assert device.power_limit_w is None


def test_nvidia_smi_is_read() -> None:
    commands: list[Sequence[str]] = []

    def smi(command: Sequence[str]) -> str:
        commands.append(command)
        return SMI

    gpus = SmiDriver(smi).gpus()
    assert commands[0][0] == "nvidia-smi"
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert gpus[0] == Gpu(index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-aaaa1111", memory_bytes=81559 << 20, driver="580.159.04")
    assert (gpus[2].uuid, gpus[2].memory_bytes) == (None, None)


@pytest.mark.parametrize("failure", [FileNotFoundError(), PermissionError(), subprocess.TimeoutExpired("nvidia-smi", 1)])
def test_a_failing_nvidia_smi_is_no_gpu(failure: Exception) -> None:
    def smi(command: Sequence[str]) -> str:
        raise failure

    assert SmiDriver(smi).gpus() == ()


def test_garbage_from_nvidia_smi_is_no_gpu() -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert SmiDriver(lambda command: text).gpus() == ()


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb", [1]),
        ("0,7,1", [0]),
        ("-1", []),
        ("0,0", [0]),
        ("MIG-1234", []),
    ],
)
def test_only_what_cuda_shows_is_here(visible: str | None, indices: list[int]) -> None:
    gpus = SmiDriver(lambda command: SMI).gpus()
    assert [gpu.index for gpu in visible_gpus(gpus, visible)] == indices


def test_a_machine_knows_its_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    host = read_host(machine_tree(tmp_path), affinity=2)
    machine = detect(host, SmiDriver(lambda command: SMI))
    assert [machine.slug(index) for index in range(3)] == ["h100-sxm", "h100-sxm", None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert [gpu.name for gpu in detect(host, SmiDriver(lambda command: SMI)).gpus] == ["NVIDIA Imaginary"]
    assert detect(host, NoDriver("none")).gpus == ()


def test_the_fingerprint_is_of_the_hardware_and_nothing_else(tmp_path: Path) -> None:
    host = read_host(machine_tree(tmp_path), affinity=2)
    gpu = Gpu(index=0, name="NVIDIA L4", uuid="GPU-1", memory_bytes=23034 << 20, driver="550.54")
    machine = Machine(host=host, gpus=(gpu,))
    assert machine.fingerprint == Machine(host=host, gpus=(dataclasses.replace(gpu, uuid="GPU-2", index=5),)).fingerprint
    slightly = dataclasses.replace(host, memory_bytes=(host.memory_bytes or 0) - (3 << 20))
    assert machine.fingerprint == Machine(host=slightly, gpus=(gpu,)).fingerprint
    others: list[tuple[Host, tuple[Gpu, ...]]] = [
        (host, ()),
        (host, (gpu, gpu)),
        (host, (dataclasses.replace(gpu, name="NVIDIA L40S"),)),
        (host, (dataclasses.replace(gpu, driver="560.1"),)),
        (dataclasses.replace(host, cores=4), (gpu,)),
        (dataclasses.replace(host, model="another"), (gpu,)),
        (dataclasses.replace(host, memory_bytes=64 << 30), (gpu,)),
    ]
    prints = {Machine(host=other, gpus=cards).fingerprint for other, cards in others}
    assert len(prints) == len(others)
    assert machine.fingerprint not in prints
