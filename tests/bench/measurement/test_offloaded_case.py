"""A case with weights and pages elsewhere: measured like any other, with what came over the link and how large it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.bench.prediction.sizes import sizes
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record
from inferometer.cli.main import main
from inferometer.model.description import describe
from tiny_models import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::inferometer.errors.PointlessWarning")


def bench(tmp_path: Path, *more: str) -> list[str]:
    model = str(tiny_model(tmp_path, "llama", vocab_size=256))
    shape = ["--batch-size", "6", "--sequence-length", "20", "--decode-length", "5", "--runs", "2", "--no-energy"]
    return ["bench", model, "--weights", "dummy", "--dtype", "float32", "--device", "cpu", *shape, "--host-memory", "0.05", *more]


@pytest.mark.parametrize("order", [None, "zigzag", "diagonal"])
@pytest.mark.parametrize(
    "where", [["--offload", "pages"], ["--offload", "weights:0.5,pages"], ["--percent", "0", "100", "50", "50", "100", "0"]]
)
def test_an_offloaded_case_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str | None, where: list[str]) -> None:
    groups = [] if order is None else ["--admission", order, "--group-size", "2"]
    output = tmp_path / "records.jsonl"
    assert main(bench(tmp_path, *where, *groups, "--output", str(output))) == 0
    shown = capsys.readouterr().out
    (line,) = output.read_text().splitlines()
    record = Record.from_json(json.loads(line))
    assert record.status == "ok"
    assert record.checked is not None
    assert record.checked.passed
    assert record.offload == (where[1] if where[0] == "--offload" else None)
    assert record.percent == (" ".join(where[1:]) if where[0] == "--percent" else None)
    assert record.host_memory_limit == int(0.05 * 2**30)
    assert record.link_gb_s is not None
    assert record.link_gb_s > 0
    assert record.link_bound is None  # a CPU has no link to itself
    assert record.sizes is not None
    assert record.sizes["cache"] == 6 * 25 * 2 * 2 * 16 * 4
    assert record.sizes["hidden"] == 6 * 25 * 32 * 4
    assert "from the host" in shown
    assert "cache 37.5 KiB" in shown
    assert "| Host Memory" in shown


def test_sizes_are_those_that_flexgen_prints_for_document_000() -> None:
    """model size 2.443 GB, cache size 3.188 to 25.5 GB, hidden size (p) 0.066 to 0.531 GB for 4 to 32 groups of 8 prompts of 512 + 32."""
    spec = describe("opt-1.3b", config_only=True).spec
    for groups, cache, hidden in ((4, 3.188, 0.066), (8, 6.375, 0.133), (16, 12.75, 0.266), (32, 25.5, 0.531)):
        case = Case(
            model="opt-1.3b", backend="native", dtype="float16", device=None, batch_size=8 * groups, sequence_length=512, decode_length=32
        )
        found = {name: round(size / 2**30, 3) for name, size in sizes(case, spec).items()}
        assert found["cache"] == pytest.approx(cache, abs=0.001)
        assert found["hidden"] == pytest.approx(hidden, abs=0.001)
        assert found["model"] == pytest.approx(2.443, rel=0.01)


def test_another_backend_does_not_offload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tmp_path, "--offload", "pages", "--backend", "hf")) == 2
    assert "is run by --backend native alone" in capsys.readouterr().err
    assert main(bench(tmp_path, "--offload", "everything")) == 2
    assert "weights, weights:FRACTION, pages" in capsys.readouterr().err


def test_old_cases_keep_their_names() -> None:
    plain = Case(model="m", backend="native", dtype="float32", device=None, batch_size=1, sequence_length=2, decode_length=3)
    assert plain.case_id == "738c672a4004e722"


def test_where_prefill_and_decode_share_sweeps_they_have_the_times_of_flexgens_timer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "records.jsonl"
    assert main(bench(tmp_path, "--offload", "weights", "--admission", "diagonal", "--group-size", "2", "--output", str(output))) == 0
    shown = capsys.readouterr().out
    record = Record.from_json(json.loads(output.read_text()))
    assert record.prefill_ms is None
    assert record.first_tokens_ms is not None
    assert record.total_ms is not None
    assert all(part < whole for part, whole in zip(record.first_tokens_ms.samples, record.total_ms.samples, strict=True))
    # The third group's first token is the third of the first, in whose sweep it comes, and the second of the second.
    assert record.first_tokens == 2 + 4 + 6
    assert "prefill, until the last prompt had its first token, " in shown
    assert "with 6 more tokens decoded beside it; decode of the last 18 tokens " in shown
    rest = record.total_ms.mean - record.first_tokens_ms.mean
    assert f"decode of the last 18 tokens {rest:.2f} ms (" in shown
