"""`inferometer report`: formats, files, comparisons and their exit codes, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_records import made, ran

from inferometer.bench.records.record import Record
from inferometer.cli.main import main

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def write(path: Path, *records: Record) -> Path:
    path.write_text("".join(json.dumps(record.to_json()) + "\n" for record in records))
    return path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    lost = made(batch_size=4, status="oom", evidence="OutOfMemoryError: 3 | 4 <b>*GiB*</b>\nshort")
    return write(tmp_path / "runs.jsonl", made(STEADY, STEADY), made(STEADY, STEADY, batch_size=2), lost)


def test_markdown_by_default(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(records)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# runs\n")
    assert "## bigscience/bloomz-7b1-mt, 1024 prompt + 8 new tokens" in text
    assert "| Prefill        | 1          | 100.00 ms |" in text
    assert "batch 4: oom. OutOfMemoryError: 3 | 4 \\<b>\\*GiB\\*\\</b> short" in text
    assert len({len(line) for line in text.splitlines() if line.startswith("| native")}) <= 2


def test_restructured_text(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(records), "--format", "rst", "--title", "My runs"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("My runs\n=======\n")
    assert "+=====" in text
    assert r"\*GiB\*" in text


def test_values(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(records), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["label"], row["batch_size"], row["status"]) for row in rows] == [
        ("native fp16", "1", "ok"),
        ("native fp16", "2", "ok"),
        ("native fp16", "4", "oom"),
    ]
    assert (rows[0]["prefill_ms.p50"], rows[0]["prefill_ms.p99"], rows[2]["prefill_ms.p50"]) == ("100.0", "101.0", "")
    assert rows[2]["evidence"].startswith("OutOfMemoryError: 3 | 4")
    assert "prefill_ms" not in rows[0]
    assert not any("samples" in name for name in rows[0])


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", "<!doctype html>"), ("a.rst", "runs\n===="), ("a.csv", "label,"), ("a.md", "# runs"), ("a", "# runs")]
)
def test_a_files_name_says_the_format(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, begins: str) -> None:
    assert main(["report", str(records), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text().startswith(begins)
    assert capsys.readouterr().out == ""
    assert main(["report", str(records), "-o", str(tmp_path / "b.pdf"), "--format", "rst"]) == 0
    assert (tmp_path / "b.pdf").read_text().startswith("runs\n====")


STUDY = """
name = "mine"
title = "A & B"
[fixed]
model = "opt-125m"
sequence_length = 8
decode_length = 5
[[part]]
name = "sweep"
axes = { batch_size = [1, 2] }
columns = [{ name = "ours", backend = "native" }]
[[table]]
part = "sweep"
title = "Latency of mine"
rows = "batch_size"
columns = "column"
cell = "latency"
[[plot]]
part = "sweep"
title = "Throughput of mine"
kind = "lines"
rows = "batch_size"
columns = "column"
cell = "throughput"
"""


def test_the_page_of_a_studys_folder_has_its_tables_and_plots(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    write(folder / "records.jsonl", *(ran("ours", prefill=STEADY, token=STEADY, batch_size=size) for size in (1, 2)))
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    text = page.read_text()
    assert "<title>A &amp; B</title>" in text
    assert "<h3>Latency of mine" in text
    assert 'aria-label="Throughput of mine"' in text
    assert main(["report", str(folder / "records.jsonl"), "-o", str(page)]) == 0
    assert "of mine" not in page.read_text()


def test_columns_of_a_studys_page_are_in_its_order_whatever_the_records_are_in(tmp_path: Path) -> None:
    """So that a column's colour in the study's plots is that of the page's own."""
    names = ["first", "second", "third"]
    columns = ", ".join(f'{{ name = "{name}", backend = "native" }}' for name in names)
    (tmp_path / "study.toml").write_text(STUDY.replace('{ name = "ours", backend = "native" }', columns))
    write(tmp_path / "records.jsonl", *(ran(name, prefill=STEADY, token=STEADY) for name in ("third", "first", "stranger", "second")))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    legend = page.read_text().partition("<table class=columns>")[2].partition("</table>")[0]
    assert re.findall(r"<th scope=row[^>]*>([a-z]+)", legend) == [*names, "stranger"]


def test_several_files_and_a_folder(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    write(folder / "records.jsonl", made(STEADY, STEADY, backend="hf"))
    assert main(["report", str(records), str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# runs, study\n")
    assert "4 cases, 3 of them ok" in text


def test_a_torn_line_is_a_remark(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with records.open("a") as file:
        file.write('{"schema_version": 1, "case')
    assert main(["report", str(records)]) == 0
    assert "the last line is torn" in capsys.readouterr().out
    assert main(["report", str(records), "--format", "csv"]) == 0
    captured = capsys.readouterr()
    assert "torn" not in captured.out
    assert "inferometer: warning: " in captured.err


def test_half_a_character_does_not_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", made(status="error", evidence="x"))
    file.write_text(file.read_text().replace('"evidence": "x"', '"evidence": "half \\ud83d \\u2028 \\u0000"'))
    for form in ("md", "rst", "csv", "html"):
        assert main(["report", str(file), "--format", form]) == 0
        assert "half ?" in capsys.readouterr().out or form == "html"


@pytest.mark.parametrize("form", ["md", "rst", "csv", "html"])
def test_a_comparison_with_itself_is_no_regression(records: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["report", "--compare", str(records), str(records), "--format", form]) == 0
    assert "alike" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["md", "rst", "csv", "html"])
def test_a_regression_is_exit_code_3(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    new = write(tmp_path / "new.jsonl", made(STEADY, [1.3 * sample for sample in STEADY]), made(STEADY, STEADY, batch_size=2))
    assert main(["report", "--compare", str(records), str(new), "--format", form]) == 3
    text = capsys.readouterr().out
    assert "slower" in text
    assert "issing" in text  # batch 4
    assert main(["report", "--compare", str(new), str(records), "--format", form]) == 0


def test_the_tolerance_is_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.jsonl", made(STEADY, STEADY))
    new = write(tmp_path / "new.jsonl", made(STEADY, [1.1 * sample for sample in STEADY]))
    assert main(["report", "--compare", str(old), str(new)]) == 3
    assert main(["report", "--compare", str(old), str(new), "--tolerance", "15"]) == 0
    assert "by more than 15 %" in capsys.readouterr().out


def test_two_files_without_a_case_in_common_do_not_pass_as_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.jsonl", made(STEADY, STEADY))
    new = write(tmp_path / "new.jsonl", made(STEADY, STEADY, batch_size=2))
    assert main(["report", "--compare", str(old), str(new)]) == 2
    said = capsys.readouterr()
    assert "Nothing compared. 0 times compared" in said.out
    assert "1 new cases, 1 missing" in said.out
    assert "No regression" not in said.out
    assert said.err.startswith("inferometer: error: --compare OLD NEW: no case that ran is in both")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name at least one file of RECORDS"),
        (("absent.jsonl",), "absent.jsonl: No such file or directory; name a file of records"),
        (("{runs}", "--format", "pdf"), "--format"),
        (("{runs}", "--compare", "{runs}", "{runs}"), "leave out the other RECORDS"),
        (("--compare", "{runs}"), "--compare"),
        (("{runs}", "--tolerance", "3"), "--tolerance goes with --compare"),
        (("--compare", "{runs}", "{runs}", "--tolerance", "-1"), "--tolerance"),
        (("{runs}", "-o", "{runs}", "--format", "md"), "holds the records that are read; name another file"),
        (("--compare", "{runs}", "{runs}", "-o", "{runs}", "--format", "md"), "holds the records that are read"),
        (("{runs}", "-o", "a.pdf"), "--output a.pdf: .pdf is no format; end the name in .md, .markdown, .rst, .csv, .html, .htm, or say"),
        (("{runs}", "-o", "/absent/folder/a.html"), "--output /absent/folder/a.html: No such file or directory; name a file"),
    ],
)
def test_a_mistake_is_one_line(records: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert main(["report", *(word.replace("{runs}", str(records)) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_it_needs_no_torch(records: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom inferometer.cli.main import main\n"
        f"for form in ('md', 'rst', 'csv', 'html'): main(['report', {str(records)!r}, '--format', form])\n"
        f"main(['report', '--compare', {str(records)!r}, {str(records)!r}])\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'transformers'}), file=sys.stderr)"
    )
    source = Path(__file__).parent.parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "INFEROMETER_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert done.stderr == "[]\n"
