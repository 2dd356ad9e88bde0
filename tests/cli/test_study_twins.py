"""A case that two parts of a study ask alike is measured once and answers both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_worker import Workshop

from inferometer.bench.conduct.conductor import Conductor
from inferometer.bench.conduct.worker_process import WorkerEndedError
from inferometer.bench.records.compact import compacted
from inferometer.bench.records.journal import read_records
from inferometer.bench.records.record import Record
from inferometer.cli.main import main
from inferometer.errors import UserError

FOLDER = Path("inferometer-studies/mine")
STUDY = """
title = "One stack, twice"

[fixed]
model = "tiny-opt"
weights = "dummy"
dtype = "float32"
device = "cpu"
decode_length = 3
runs = 2
warmups = 1

[[part]]
name = "batches"
fixed = { sequence_length = 4 }
[part.axes]
batch_size = [1, 2]
[[part.columns]]
name = "ours"
backend = "native"

[[part]]
name = "prompts"
[part.axes]
batch_size = [1, 2]
sequence_length = [4, 8]
[[part.columns]]
name = "ours"
backend = "native"

[[table]]
part = "batches"
title = "Over batches"
rows = "batch_size"
columns = "column"
cell = "throughput"

[[table]]
part = "prompts"
title = "Over prompts"
rows = ["batch_size", "sequence_length"]
columns = "column"
cell = "throughput"
"""
BATCHES = [("batches", 1, 4), ("batches", 2, 4)]
PROMPTS = [("prompts", 1, 4), ("prompts", 1, 8), ("prompts", 2, 4), ("prompts", 2, 8)]

Study = Callable[..., tuple[int, Workshop]]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Runs the study in a folder of its own, by processes that are none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*arguments: str, shop: Workshop | None = None, text: str = STUDY) -> tuple[int, Workshop]:
        shop = shop or Workshop()
        Path("mine.toml").write_text(text)
        monkeypatch.setattr("inferometer.cli.study_work.Conductor", partial(Conductor, start=shop, clock=shop.clock))
        return main(["study", "run", "mine.toml", *arguments]), shop

    return run


def records() -> list[Record]:
    return read_records(FOLDER / "records.jsonl")


def asked(found: Sequence[Record]) -> list[tuple[str | None, int, int]]:
    return sorted((each.part, each.batch_size, each.sequence_length) for each in found)


def stands(record: Record) -> Any:
    return record.environment.get("same_run_as")


def test_one_run_answers_both_parts(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    code, shop = study()
    assert code == 0
    assert len(shop.steps("begin")) == 4
    found = records()
    assert asked(found) == BATCHES + PROMPTS
    # The second is the first under its own part's name, and says so.
    for first in found:
        twins = [each for each in found if each.case_id == first.case_id and each is not first]
        assert len(twins) == (first.sequence_length == 4)
        if first.part == "batches":
            assert twins[0].to_json() == {
                **first.to_json(),
                "part": "prompts",
                "environment": {**first.environment, "same_run_as": "batches"},
            }
            assert stands(first) is None
    out, err = capsys.readouterr()
    tables = [out.split(f"{title}\n")[1].split("Predicted")[0].split("\n## ")[0] for title in ("Over batches", "Over prompts")]
    # 3 tokens of each of the batch in 50 ms.
    assert [(table.count(" 60.00 "), table.count(" 120.00 ")) for table in tables] == [(1, 1), (2, 2)]
    assert "[2/6] prompts, ours, tiny-opt, batch 1, prompt 4, 3 new (the same run as in batches): ok, 50.00 ms" in err
    # Kept in few bytes, they are the same.
    (FOLDER / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in compacted(found)))
    assert records() == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sequence_length = [4, 8]", "sequence_length = [4, 8]\n[part.fixed]\nruns = 3"),
        ("sequence_length = [4, 8]", "sequence_length = [4, 8]\n[part.fixed]\nwarmups = 0"),
        ("sequence_length = [4, 8]", "sequence_length = [4, 8]\n[part.fixed]\nenergy = false"),
        ("sequence_length = [4, 8]", "sequence_length = [4, 8]\n[part.fixed]\nseed = 7"),
        ("sequence_length = [4, 8]", "sequence_length = [4, 8]\n[part.fixed]\ntimeout_s = 9.0"),
        ('fixed = { sequence_length = 4 }\n[part.axes]\nbatch_size = [1, 2]\n[[part.columns]]\nname = "ours"', None),
    ],
)
def test_what_is_asked_in_another_way_is_measured_by_itself(study: Study, old: str, new: str | None) -> None:
    assert old in STUDY
    _, shop = study(text=STUDY.replace(old, new or old.replace("ours", "still ours")))
    assert len(shop.steps("begin")) == 6
    assert [stands(each) for each in records()] == [None] * 6


def test_efforts_that_one_part_asks_side_by_side_are_told_apart_by_no_record(study: Study) -> None:
    """So that none of them answers for another part."""
    study(text=STUDY.replace("sequence_length = [4, 8]", "sequence_length = [4, 8]\nruns = [2, 3]"))
    assert [stands(each) for each in records()] == [None] * (2 + 8)


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        ("oom: no room", "oom", 3),
        ("error: it broke", "error", 3),
        (WorkerEndedError("timeout", "while it ran"), "timeout", 3),
        (UserError("it needs a package"), "skipped", 0),
    ],
)
def test_a_failure_is_the_twins_as_well(study: Study, outcome: str | Exception, status: str, code: int) -> None:
    shop = Workshop(outcome=lambda case, others: outcome if case.sequence_length == 4 and case.batch_size == 1 else "ok")
    assert study(shop=shop)[0] == code
    assert len([entry for entry in shop.steps("begin") if entry[2] == 1]) == 2
    failed = [each for each in records() if each.status != "ok"]
    assert [(each.part, each.status, stands(each)) for each in failed] == [("batches", status, None), ("prompts", status, "batches")]
    assert failed[0].evidence == failed[1].evidence


def test_the_other_part_knows_that_memory_was_not_enough(study: Study) -> None:
    """No case that cannot fit is tried after one of its column has shown so, though another part's run showed it."""
    shop = Workshop(outcome=lambda case, others: "oom: no room")
    code, _ = study(shop=shop, text=STUDY.replace("batch_size = [1, 2]", "batch_size = [1_000_000_000]"))
    assert code == 3
    assert len(shop.steps("begin")) == 1
    untried = [each for each in records() if "not tried after the oom of another case" in str(each.evidence)]
    assert asked(untried) == [("prompts", 1_000_000_000, 8)]


def test_searches_for_one_edge_in_two_parts_try_each_batch_once(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Workshop(outcome=lambda case, others: "ok" if case.batch_size <= 5 else "oom: no room")
    code, _ = study("--find-edge", shop=shop, text=STUDY.replace("sequence_length = [4, 8]", "sequence_length = [4]"))
    assert code == 3
    tried = [entry[2] for entry in shop.steps("begin")]
    assert max(tried) > 5
    assert len(tried) == len(set(tried))
    edges = [each for each in records() if str(each.part).endswith(" edge")]
    ends = {(each.part, each.batch_size, each.status) for each in edges}
    assert {end[1:] for end in ends if end[0] == "batches edge"} == {end[1:] for end in ends if end[0] == "prompts edge"}
    assert {stands(each) for each in edges if each.part == "prompts edge"} == {"batches edge"}
    err = capsys.readouterr().err
    assert all(f"{part}, ours: a batch of 5 fits, one of 6 does not" in err for part in ("batches", "prompts"))


def test_a_reason_that_leaves_out_one_of_them_is_its_own(study: Study) -> None:
    left_out = '[[part.exclude]]\nbatch_size = 1\nreason = "enough"\n\n[[part]]\nname = "prompts"'
    _, shop = study(text=STUDY.replace('[[part]]\nname = "prompts"', left_out))
    assert len(shop.steps("begin")) == 4
    found = {(each.part, each.batch_size): each.status for each in records() if each.sequence_length == 4}
    assert found == {("batches", 1): "skipped", ("batches", 2): "ok", ("prompts", 1): "ok", ("prompts", 2): "ok"}


@pytest.mark.parametrize(("first", "other"), [("batches", "prompts"), ("prompts", "batches")])
def test_a_part_by_itself_is_gone_on_with(study: Study, first: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, shop = study("--only", first)
    alone = BATCHES if first == "batches" else PROMPTS
    assert len(shop.steps("begin")) == len(alone)
    assert asked(records()) == alone
    assert not any(map(stands, records()))
    capsys.readouterr()
    # By its name or with all, nothing of it is measured again.
    _, shop = study("--resume", "--only", other, "--json")
    assert len(shop.steps("begin")) == 4 - len(alone)
    out, err = capsys.readouterr()
    assert {each["part"] for each in json.loads(out)["records"]} == {other}
    assert f"2 of {6 - len(alone)} cases have their records in" in err
    assert asked(records()) == BATCHES + PROMPTS
    assert [stands(each) for each in records() if each.part == other and each.sequence_length == 4] == [first] * 2
    before = records()
    _, shop = study("--resume")
    assert not shop.steps("begin")
    assert records() == before


def test_a_run_that_was_broken_off_between_the_two_is_gone_on_with(study: Study) -> None:
    study()
    lines = (FOLDER / "records.jsonl").read_text().splitlines(keepends=True)
    for lost in range(6):
        (FOLDER / "records.jsonl").write_text("".join(line for position, line in enumerate(lines) if position != lost))
        measured = not any(each.case_id == json.loads(lines[lost])["case_id"] for each in records())
        _, shop = study("--resume")
        assert len(shop.steps("begin")) == measured
        assert asked(records()) == BATCHES + PROMPTS
        # Whichever of the two was lost, they are one run and at most one of them says so of the other.
        assert all(stands(each) != each.part for each in records())
        (FOLDER / "records.jsonl").write_text("".join(lines))


def test_what_was_skipped_for_a_reason_that_has_gone_is_asked_once_more(study: Study) -> None:
    study(shop=Workshop(outcome=lambda case, others: UserError("it needs a package")))
    assert {each.status for each in records()} == {"skipped"}
    for code in (0, 0):
        done, shop = study("--resume", shop=Workshop(outcome=lambda case, others: UserError("it needs a package")))
        assert done == code
        assert len(shop.steps("begin")) == 4
        assert len(records()) == 6, "what is skipped again for the same reason is known"
    _, shop = study("--resume")
    assert len(shop.steps("begin")) == 4
    assert [each.status for each in records()[6:]] == ["ok"] * 6


def test_a_dry_run_counts_it_once(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    def cases(*arguments: str) -> list[dict[str, Any]]:
        assert study("--dry-run", "--json", *arguments)[0] == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["cases"]
        return found

    whole = cases()
    assert [each["same_run_as"] for each in whole] == [None, None, "batches", None, "batches", None]
    assert [each["predicted"]["seconds"] > 0 for each in whole] == [each["same_run_as"] is None for each in whole]
    assert all(each["predicted"]["run_s"] > 0 for each in whole)
    alone = cases("--only", "prompts")
    assert all(each["same_run_as"] is None and each["predicted"]["seconds"] > 0 for each in alone)
    study("--dry-run")
    out = capsys.readouterr().out
    assert out.count("ok: the same run as in batches") == 2
    assert "6 cases: 6 expected ok; 2 of them answered by the same run as a case of another part. The runs take about 0 seconds" in out
    study("--dry-run", "--runs", "1000000", "--no-energy")
    minutes = float(capsys.readouterr().out.split("The runs take about ")[1].split(" minutes")[0])
    alike = cases("--runs", "1000000", "--no-energy")
    assert minutes == pytest.approx(sum(each["predicted"]["seconds"] for each in alike) / 60, rel=0.01)
