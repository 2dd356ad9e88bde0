"""`inferometer validate` on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from inferometer.cli.main import main
from inferometer.estimate.measured import load_rows

RECORDS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "foundation-h100.jsonl"


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "home"))


def test_a_regime_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--regime", "001-runtime-1gpu", "--rows", "--json"]) == 0
    out, err = capsys.readouterr()
    (regime,) = json.loads(out)["regimes"]
    assert err == ""
    assert (regime["regime"], regime["gate"], regime["worst_gate"]) == ("001-runtime-1gpu", 0.07, 0.18)
    assert set(regime["left_out"]) == {"model", "device"}
    assert {"inferometer", "peak roofline", "constant efficiency", "its own estimate"} <= set(regime["errors"])
    assert regime["errors"]["its own estimate"]["mean"] == pytest.approx(0.084, abs=5e-4)
    assert len(regime["rows"]) == 2 * 12
    assert not any(line["fitted"] for line in regime["rows"])


def test_json_is_also_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--regime", "003", "--json"]) == 0
    first = capsys.readouterr().out
    assert main(["validate", "--regime", "003", "--format", "json"]) == 0
    assert capsys.readouterr().out == first


def test_a_missed_gate_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name in ("001-runtime-8gpu", "002-tp1", "mlenergy", "own-time"):
        assert f"| {name} " in out
    assert "Peak roofline" in out


def test_rows_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--regime", "002-bitsandbytes", "--rows"]) == 0
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("| tp8")}
    assert len(lines) == 12
    assert [name for name, line in lines.items() if "| fitted" in line] == ["tp8-short-prefill-b32", "tp8-short-decode-b1"]


def test_rows_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--regime", "000-memory", "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["row"] for line in found] == [row.id for row in load_rows("000-memory")]
    assert {line["held_out"] for line in found} == {"yes", "no"}


def test_the_scatter_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--regime", "003", "--plot", str(tmp_path / "errors.svg")]) == 0
    assert capsys.readouterr().err == ""
    assert ElementTree.parse(tmp_path / "errors.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regime", "005"], "regime 005 is unknown; the regimes are 001-runtime-1gpu"),
        (["--json", "--format", "csv"], "--json and --format csv contradict"),
        (["--records", str(RECORDS), "--regime", "003"], "--regime is of the published rows"),
        (["--records", str(RECORDS), "--format", "csv"], "--format csv is of the published rows"),
        (["--records", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--regime", "003", "--plot", "/nowhere/a.svg"], "--plot /nowhere/a.svg: No such file"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_own_records_are_judged_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--records", str(RECORDS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["errors"]) == {"forward_ms", "prefill_ms", "decode_token_ms", "peak_memory_bytes", "j_per_token"}
    assert found["errors"]["prefill_ms"]["rows"] == 8
    assert found["errors"]["forward_ms"]["rows"] == 1
    first, record = found["figures"][0], json.loads(RECORDS.read_text().splitlines()[0])
    assert first["measured"] == record["prefill_ms"]["p50"]
    assert first["predicted"] > 0
    assert first["predicted_then"] == record["predicted"]["prefill_ms"]


def test_own_records_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--records", str(RECORDS)]) == 0
    out = capsys.readouterr().out
    assert "| decode (token) | 8 " in out
    assert "bloomz-7b1 | hf " in out


def test_a_record_of_what_is_not_known_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(RECORDS.read_text().splitlines()[0]) | {"model": "someone/unknown-model"}
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(record) + "\n")
    assert main(["validate", "--records", str(file)]) == 0
    out = capsys.readouterr().out
    assert "someone/unknown-model is no preset and not here" in out
    then = 100 * (record["predicted"]["prefill_ms"] / record["prefill_ms"]["p50"] - 1)
    assert f"{then:+.1f} %" in out  # the prediction that the record holds


def test_a_study_s_folder_stands_for_its_records_which_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "records.jsonl").write_text(RECORDS.read_text())
    assert main(["validate", "--records", str(folder), str(RECORDS), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["errors"]["prefill_ms"]["rows"] == 8
    assert err == "inferometer: warning: 9 records given more than once: each counts once.\n"
