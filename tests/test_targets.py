"""What the product is held to, beside the stored records."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    known = importlib.util.spec_from_file_location("targets", ROOT / "benchmarks" / "targets.py")
    assert known is not None
    assert known.loader is not None
    module = importlib.util.module_from_spec(known)
    sys.modules["targets"] = module
    known.loader.exec_module(module)
    return module


def folder(path: Path, *records: dict[str, Any]) -> Path:
    (path / "card.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def outcome(targets: ModuleType, path: Path, **fields: Any) -> Any:
    target = targets.Target(part="p", work="w", records="card", **fields)
    return targets.outcomes([target], [path])[0]


OURS = {"measured": "step", "backend": "native", "ms": {"p50": 2.0}, "limit": 1.5, "bound_ms": 1.0, "device_name": "a card"}
THEIRS = {**OURS, "backend": "hf", "ms": {"p50": 5.0}}


def test_a_figure_is_held_against_a_number_or_a_field_of_its_record(targets: ModuleType, tmp_path: Path) -> None:
    path = folder(tmp_path, OURS, THEIRS)
    where = {"backend": "native"}
    assert outcome(targets, path, where=where, figure="ms.p50", at_most=2.0).held is True
    missed = outcome(targets, path, where=where, figure="ms.p50", at_most="limit", note="the cache", bound="bound_ms", unit="ms")
    assert (missed.held, missed.measured, missed.limit) == (False, 2.0, 1.5)
    page = targets.page([missed])
    assert "0 of 1 measured targets are held; 0 are not measured" in page
    assert "| w    | <= 1.5 | 2     | **no** |" in page
    assert "- w: **the cache**" in page


def test_the_last_record_that_fits_counts_and_one_may_be_divided_by_another(targets: ModuleType, tmp_path: Path) -> None:
    path = folder(tmp_path, {**OURS, "ms": {"p50": 9.0}}, THEIRS, OURS)
    where = {"backend": "native"}
    times = outcome(targets, path, where=where, figure="ms.p50", under={"backend": "hf"}, at_least=2.5)
    assert (times.measured, times.held) == (2.5, True)
    assert outcome(targets, path, where=where, figure="ms.p50", over={"backend": "hf"}, at_least=2.5).measured == 0.4


def test_what_no_record_tells_is_not_measured(targets: ModuleType, tmp_path: Path) -> None:
    path = folder(tmp_path, OURS, {"backend": "other", "ms": {"p99": 4.0}})
    for fields in (
        {"where": {"backend": "native"}, "figure": "ms.p50", "over": {"backend": "hf"}},
        {"where": {"backend": "hf"}, "figure": "ms.p50"},
        {"where": {"backend": "native"}, "figure": "ms.p99"},
    ):
        found = outcome(targets, path, **fields, at_least=3.0, awaited=True)
        assert (found.held, found.measured, found.limit) == (None, None, 3.0)
        assert "not measured" in targets.page([found])


def test_records_that_no_file_has_are_a_slip_unless_they_are_awaited(targets: ModuleType, tmp_path: Path) -> None:
    path = folder(tmp_path, OURS)
    slip = targets.Target(part="p", work="w", records="crad", where={}, figure="ms.p50", at_most=3.0)
    with pytest.raises(ValueError, match="w: there are no records crad; is it card"):
        targets.outcomes([slip], [path])
    to_come = targets.Target(part="p", work="w", records="another", where={}, figure="ms.p50", at_most=3.0, awaited=True)
    assert targets.outcomes([to_come], [path])[0].held is None


def test_a_record_that_is_not_there_is_a_slip_unless_it_is_awaited(targets: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w: no record of card is .*'hf'"):
        outcome(targets, folder(tmp_path, OURS), where={"backend": "hf"}, figure="ms.p50", at_most=3.0)


@pytest.mark.parametrize(
    "slip",
    [
        {"where": {"bakcend": "native"}},
        {"figure": "ms.p05"},
        {"over": {"bakcend": "hf"}},
        {"at_most": "limti"},
        {"shown": "ms.p5"},
        {"bound": "bound"},
    ],
)
def test_a_field_that_no_record_has_is_a_slip(slip: dict[str, Any], targets: ModuleType, tmp_path: Path) -> None:
    fields = {"where": {"backend": "native"}, "figure": "ms.p50", "at_most": 3.0} | slip
    with pytest.raises(ValueError, match=r"w: no record of card has a field .*; is it"):
        outcome(targets, folder(tmp_path, OURS), **fields)


def test_a_target_has_one_limit(targets: ModuleType) -> None:
    for limits in ({}, {"at_least": 1.0, "at_most": 2.0}):
        with pytest.raises(ValueError, match="one of at_least and at_most"):
            targets.Target(part="p", work="w", records="card", where={}, figure="ms", **limits)


def test_every_target_of_the_product_names_fields_that_its_record_has(targets: ModuleType) -> None:
    folders = [ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "measurements", ROOT / "results"]
    for found in targets.outcomes(targets.read_targets(ROOT / "benchmarks" / "targets.toml"), folders):
        if found.record is not None:
            assert found.held is not None, found.target.work
            for name in (found.target.shown, found.target.bound):
                assert name is None or name in found.record, (found.target.work, name)
