"""`inferometer devices`: the table, what is here, and calibrating it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferometer.bench.machine.doubt import doubtful
from inferometer.cli import devices
from inferometer.cli.main import main
from inferometer.hardware.calibration import Calibration, load_calibrations, save_calibration
from inferometer.hardware.catalogue import catalogue
from inferometer.hardware.detect import Machine
from inferometer.hardware.host import Host
from inferometer.hardware.nvidia import Gpu

HOST = Host(model="Imaginary CPU", vendor="Nobody", cores=3, flags=("avx2",), memory_bytes=64 << 30, cache_bytes=1 << 20)
H100 = Gpu(index=0, name="NVIDIA H100 80GB HBM3", uuid=None, memory_bytes=81559 << 20, driver="580.1")
ODD = Gpu(index=1, name="NVIDIA Imaginary", uuid=None, memory_bytes=None, driver=None)
MEASURED = Calibration(
    device="cuda:0",
    device_name=H100.name,
    slug="h100-sxm",
    measured_at="2026-01-02T03:04:05+00:00",
    torch_version="2.13.0",
    threads=None,
    seconds_spent=9.5,
    copy_bandwidth_bytes_s=0.9 * 3350e9,
    read_bandwidth_bytes_s=0.8 * 3350e9,
    matmul_flop_s={"float16": 0.75 * 989.4e12},
    launch_s=4e-6,
    host_to_device_bytes_s=54e9,
    peer_bytes_s=380e9,
    peer_sum_s=2.3e-6,
    sums_s={2: {8192: 4.4e-6, 1 << 26: 211e-6}},
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    here = Machine(host=HOST, gpus=(H100, ODD))
    monkeypatch.setattr(devices, "detect", lambda: here)
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    return here


def output(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["devices", *flags]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    return json.loads(output(capsys, "--json", *flags))


def test_the_table_has_a_row_for_every_device(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {words[0]: words[1:] for line in output(capsys).splitlines() if (words := line.split())}
    assert set(catalogue()) <= set(rows)
    assert rows["h100-sxm"] == ["80", "3350", "989.4", "1979", "700", "nvlink4", "450,", "pcie5", "63.02"]
    assert rows["t4"] == ["16", "320", "65", "-", "70", "pcie3", "15.75"]


def test_what_is_here_without_calibration(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    here = output(capsys).split("Here:")[1]
    assert "Imaginary CPU, 3 cores, 64.0 GiB" in here
    assert "cuda:0: NVIDIA H100 80GB HBM3 (h100-sxm), 79.6 GiB, driver 580.1" in here
    assert "cuda:1: NVIDIA Imaginary (not in the catalogue), memory unknown, driver unknown" in here
    assert here.count("not calibrated") == 3


def test_a_machine_without_a_gpu_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(devices, "detect", lambda: Machine(host=HOST, gpus=()))
    assert "no GPU" in output(capsys).split("Here:")[1]


def test_effective_rates_stand_beside_their_part_of_the_datasheet(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    save_calibration(MEASURED, machine.fingerprint)
    lines = {line.split()[0]: line for line in output(capsys).splitlines() if line.strip()}
    assert lines["copy"].split() == ["copy", "3015", "GB/s", "90.0", "%", "of", "datasheet"]
    assert "80.0 % of datasheet" in lines["read"]
    assert "75.0 % of datasheet" in lines["float16"]
    assert lines["sums"].strip() == "sums over 2, us: 4.4 of 8.0 KiB, 211 of 64.0 MiB"
    here = document(capsys)["here"]
    assert here[1]["percent_of_datasheet"]["copy_bandwidth"] == pytest.approx(90)
    assert here[1]["percent_of_datasheet"]["matmul"] == {"float16": pytest.approx(75)}
    assert here[1]["calibration"]["launch_s"] == 4e-6
    assert here[0]["calibration"] is None


def test_the_document_is_whole(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys)
    assert [device["slug"] for device in found["devices"]] == list(catalogue())
    assert found["fingerprint"] == machine.fingerprint
    assert [entry["device"] for entry in found["here"]] == ["cpu", "cuda:0", "cuda:1"]
    assert [entry["slug"] for entry in found["here"]] == ["cpu", "h100-sxm", None]
    assert found["notice"] is None
    for entry in found["here"]:
        for reading in entry["telemetry"].values():
            assert (reading["value"] is None) == (reading["reason"] is not None)


def test_a_corrupt_calibration_is_a_notice_and_no_failure(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "calibration"
    folder.mkdir()
    (folder / f"{machine.fingerprint}.json").write_text("{")
    assert main(["devices"]) == 0
    captured = capsys.readouterr()
    assert "is ignored" in captured.err
    assert "not calibrated" in captured.out
    assert "is ignored" in document(capsys)["notice"]


def test_calibrating_stores_and_shows_the_result(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferometer.bench.machine import calibrate

    asked: list[tuple[str, float]] = []

    def measure(device: str, *, budget_s: float, progress: Any) -> Calibration:
        asked.append((device, budget_s))
        progress("memory")
        return MEASURED

    monkeypatch.setattr(calibrate, "calibrate", measure)
    assert main(["devices", "--calibrate", "--seconds", "3", "--json"]) == 0
    captured = capsys.readouterr()
    assert asked == [("auto", 3.0)]
    assert "calibrating: memory" in captured.err
    assert json.loads(captured.out)["here"][1]["calibration"]["device"] == "cuda:0"
    assert "copy" in output(capsys)
    assert asked == [("auto", 3.0)]


def test_rates_that_cannot_be_trusted_are_told_once_and_shown_as_long_as_they_are_kept(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferometer.bench.machine import calibrate

    note = doubtful({"copy": [1.0, 2.0, 4.0], "read": [1.0, 1.0, 1.0]})
    assert note is not None
    for notes in ((note,), ()):
        monkeypatch.setattr(calibrate, "calibrate", lambda device, *, budget_s, progress, notes=notes: replace(MEASURED, notes=notes))
        assert main(["devices", "--calibrate", "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err.count(f"{note}\n") == len(notes)
        assert json.loads(captured.out)["here"][1]["calibration"]["notes"] == list(notes)
        assert output(capsys).count(note) == len(notes)


def test_a_short_calibration_keeps_the_sums_over_ranks_that_it_does_not_measure(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferometer.bench.machine import calibrate

    four = {4: {8192: 6e-6}}
    later = replace(MEASURED, measured_at="2026-02-03T00:00:00+00:00", launch_s=5e-6, sums_s=four)
    latest = replace(later, measured_at="2026-03-04T00:00:00+00:00", launch_s=6e-6, sums_s={})
    told = []
    for measured in (MEASURED, later, latest):
        monkeypatch.setattr(calibrate, "calibrate", lambda device, *, budget_s, progress, found=measured: found)
        assert main(["devices", "--calibrate", "--seconds", "1"]) == 0
        told.append(capsys.readouterr().err)
    kept = load_calibrations(machine.fingerprint).devices["cuda:0"]
    assert (kept.launch_s, kept.measured_at) == (6e-6, latest.measured_at)
    assert kept.sums_s == {**MEASURED.sums_s, **four}
    # Each with the time when it was measured, however often it was kept.
    notes = [f"sums over {ranks} ranks: kept from {each.measured_at}" for ranks, each in ((2, MEASURED), (4, later))]
    assert sorted(kept.notes) == notes
    assert "kept" not in told[0]
    assert told[1].endswith(f"{notes[0]}\n")
    assert all(note in told[2] and note in output(capsys) for note in notes)
    # Measured again, it is no longer of then.
    monkeypatch.setattr(calibrate, "calibrate", lambda device, *, budget_s, progress: MEASURED)
    assert main(["devices", "--calibrate"]) == 0
    assert load_calibrations(machine.fingerprint).devices["cuda:0"].notes == (notes[1],)


@pytest.mark.parametrize(
    "flags", [["--seconds", "0"], ["--seconds", "3"], ["--device", "cpu"], ["--calibrate", "--device", "tpu"], ["--nonsense"]]
)
def test_wrong_usage_is_one_line_and_exit_2(machine: Machine, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_it_works_without_torch(flags: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'numpy'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from inferometer.cli.main import main\n"
        f"code = main(['devices', *{flags!r}])\n"
        "again = main(['devices', '--calibrate'])\n"
        "sys.exit(0 if (code, again) == (0, 2) else 1)\n"
    )
    source = str(Path(devices.__file__).parents[2])
    environment = {"PYTHONPATH": source, "INFEROMETER_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "h100-sxm" in done.stdout
    assert "this needs torch" in done.stderr
