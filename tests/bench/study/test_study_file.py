"""Studies read from TOML: what they ask, and at which scale."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import STUDY, study_file

from inferometer.bench.backends import registry
from inferometer.bench.study.file import StudyFile, read_study, resolved_text
from inferometer.bench.study.library import find_study, shipped
from inferometer.bench.study.study import Axis, Exclusion, Part, Study, StudyColumn
from inferometer.errors import UserError


def cells(file: StudyFile, scale: str = "full", **overrides: Any) -> list[tuple[str, int, int, str | None]]:
    return [
        (cell.column, cell.settings["batch_size"], cell.settings["runs"], cell.excluded) for cell in file.study(scale, overrides).cells()
    ]


def test_the_cells_of_a_study() -> None:
    assert cells(study_file()) == [
        ("one", 1, 2, None),
        ("other", 1, 2, None),
        ("one", 2, 2, None),
        ("other", 2, 2, None),
        ("one", 4, 2, None),
        ("other", 4, 2, "too slow there"),
    ]


def test_a_scale_replaces_axes_and_single_settings() -> None:
    assert study_file().scales == ("full", "tiny")
    assert cells(study_file(), "tiny") == [("one", 1, 1, None), ("other", 1, 1, None)]
    assert study_file().study("tiny").fixed["weights"] == "dummy"


def test_an_override_holds_everywhere() -> None:
    text = STUDY.replace('name = "one"\n', 'name = "one"\nruns = 7\n')
    assert {runs for _, _, runs, _ in cells(study_file(text))} == {7, 2}
    assert {runs for _, _, runs, _ in cells(study_file(text), runs=5)} == {5}


def test_an_override_holds_on_an_axis_too() -> None:
    axis = "size = [{ batch_size = 1, runs = 5 }, { batch_size = 1, runs = 6 }, { batch_size = 2, runs = 7 }]"
    text = STUDY.replace("batch_size = [1, 2, 4]", axis).partition("[scale")[0]
    assert [(size, runs) for _, size, runs, _ in cells(study_file(text))] == [(1, 5), (1, 5), (1, 6), (1, 6), (2, 7), (2, 7)]
    assert [(size, runs) for _, size, runs, _ in cells(study_file(text), runs=3)] == [(1, 3), (1, 3), (2, 3), (2, 3)]
    assert {(size, runs) for _, size, runs, _ in cells(study_file(STUDY), batch_size=3)} == {(3, 2)}


@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_a_resolved_study_is_the_study_at_that_scale(scale: str) -> None:
    for file in [study_file(), *shipped().values()]:
        text = resolved_text(file.resolved(scale, {"runs": 2}))
        again = read_study(text, "other name", "resolved")
        assert again.study() == file.study(scale, {"runs": 2})
        assert tomllib.loads(text) == file.resolved(scale, {"runs": 2})


def test_batches_are_made_of_groups() -> None:
    text = STUDY.replace("batch_size = [1, 2, 4]", "num_groups = [2, 3]").replace("decode_length = 3", "decode_length = 3\ngroup_size = 4")
    text = text[: text.index("[[part.exclude]]")]
    assert [cell.settings["batch_size"] for cell in study_file(text).study().cells()] == [8, 8, 12, 12]


def test_settings_that_change_together() -> None:
    text = STUDY.replace("batch_size = [1, 2, 4]", "size = [{ batch_size = 1, quantize = 'int8' }, { batch_size = 9, quantize = 'fp8' }]")
    found = [
        (cell.settings["batch_size"], cell.settings["quantize"])
        for cell in study_file(text.replace("[scale.t", "#").partition("#")[0]).study().cells()
    ]
    assert found == [(1, "int8"), (1, "int8"), (9, "fp8"), (9, "fp8")]


@given(
    axes=st.dictionaries(
        st.sampled_from(["batch_size", "sequence_length", "decode_length"]),
        st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True),
        max_size=3,
    ),
    columns=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True),
    excluded=st.tuples(st.none() | st.sampled_from("abcdef"), st.lists(st.integers(1, 99), max_size=3)),
)
def test_cells_are_the_product_and_exclusions_take_what_they_name(
    axes: dict[str, list[int]], columns: list[str], excluded: tuple[str | None, list[int]]
) -> None:
    column, sizes = excluded
    where = {"batch_size": tuple(sizes)} if sizes else {}
    part = Part(
        name="p",
        axes=tuple(Axis(name=name, points=tuple({name: value} for value in values)) for name, values in axes.items()),
        columns=tuple(StudyColumn(name=name, settings={"backend": name}) for name in columns),
        exclusions=(Exclusion(reason="r", where=where, columns=None if column is None else (column,)),),
    )
    found = list(Study(name="s", title="t", parts=(part,), fixed={"model": "m"}).cells())
    expected = [(*point, name) for point in product(*axes.values()) for name in columns]
    assert [(*(cell.settings[name] for name in axes), cell.column) for cell in found] == expected
    for cell in found:
        meant = (column is None or cell.column == column) and (not sizes or cell.settings.get("batch_size") in sizes)
        assert (cell.excluded == "r") == meant
        assert (cell.settings["model"], cell.settings["backend"]) == ("m", cell.column)
    rows = [cell.row for cell in found]
    assert rows == sorted(rows)
    assert len(set(rows)) == len(found) / len(columns)


def test_a_backend_of_another_package_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = STUDY.replace('backend = "hf"', 'backend = "theirs"')
    with pytest.raises(UserError, match="backend 'theirs' is unknown"):
        study_file(text)
    points = EntryPoints([EntryPoint("theirs", "no_such_module:ENTRY", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))
    registry.names.cache_clear()
    try:
        study_file(text)  # whether it can be loaded is a matter of its cases
    finally:
        monkeypatch.undo()
        registry.names.cache_clear()


def test_a_setting_is_offered_even_where_it_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY)
    assert find_study(str(path)).name == "mine"
    path.write_text('name = "called so"\n' + STUDY)
    assert find_study(str(path)).study("tiny").name == "called so"


def test_the_shipped_studies() -> None:
    files = shipped()
    assert {name: file.study().document for name, file in files.items()} == {
        "offload-schedules": "000",
        "estimate-vs-measured": "001",
        "tensor-parallel": "002",
        "gpt3-latency": "003",
        "backend-sweep": "004",
    }
    for file in files.values():
        assert "tiny" in file.scales
        study = file.study()
        assert study.summary is not None
        assert study.gpu_minutes is not None
        assert {cell.settings["weights"] for cell in study.cells()} == {"dummy"}
        tiny = [cell.settings.get("model") for cell in file.study("tiny").cells()]
        assert all(str(model).startswith("tiny-") for model in tiny)


def test_the_cases_that_the_documents_list() -> None:
    def asked(name: str, part: str, setting: str) -> list[Any]:
        return list(dict.fromkeys(cell.settings[setting] for cell in shipped()[name].study().cells() if cell.part == part))

    def columns(name: str, part: str) -> list[str]:
        return [column.name for each in shipped()[name].study().parts if each.name == part for column in each.columns]

    sizes = [1, 2, 4, 8, 16, 32, 64, *range(128, 129), *range(256, 1921, 128)]
    assert asked("backend-sweep", "sweep", "batch_size") == sizes
    assert columns("backend-sweep", "sweep") == ["hf fp32", "hf bf16", "hf int8", "deepspeed fp16", "native bf16", "native int8"]
    assert asked("offload-schedules", "prompts", "num_groups") == [4, 8, 16, 32]
    assert asked("offload-schedules", "prompts", "sequence_length") == [128, 256, 512, 1024]
    assert asked("offload-schedules", "prompts", "batch_size") == [32, 64, 128, 256]
    assert columns("offload-schedules", "batches") == ["origin", "zigzag", "diagonal"]
    assert asked("tensor-parallel", "sequence-1024", "tensor_parallel") == [1, 2, 4, 8]
    assert asked("tensor-parallel", "sequence-100", "batch_size") == [1, 2, 4, 8, 16, 32]
    assert len(asked("gpt3-latency", "sizes", "model")) == 7
    assert asked("gpt3-latency", "sizes", "batch_size") == [4, 16]
    shares = [
        (cell.settings["sequence_length"], cell.settings["decode_length"])
        for cell in shipped()["gpt3-latency"].study().cells()
        if cell.part == "prompt-share"
    ]
    assert set(shares) == {(prompt, 1024 - prompt) for prompt in range(128, 897, 128)}
    assert asked("gpt3-latency", "bert", "batch_size") == [4, 10]
    assert len(asked("estimate-vs-measured", "single-gpu", "model")) == 6


def test_the_study_in_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    file = read_study(example, "example", "docs/studies.md")
    found = list(file.study().cells())
    assert len(found) == 3 * 2 * 2
    assert sum(cell.excluded is not None for cell in found) == 2
    assert len(list(file.study("tiny").cells())) == 2 * 2 * 2
