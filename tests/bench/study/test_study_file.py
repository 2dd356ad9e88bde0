"""Studies read from TOML: what they ask, at which scale, and what is said where they are wrong."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from importlib.metadata import EntryPoint, EntryPoints
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import STUDY

from inferometer.bench.backends import registry
from inferometer.bench.study.file import StudyFile, read_study, resolved_text
from inferometer.bench.study.library import find_study, shipped
from inferometer.bench.study.study import Axis, Exclusion, Part, Study, StudyColumn
from inferometer.errors import UserError


def study_file(text: str = STUDY) -> StudyFile:
    return read_study(text, "mine", "mine.toml")


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


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('title = "Two stacks"', 'titel = "Two stacks"', 1, "titel: titel is not known here; did you mean title?"),
        ('title = "Two stacks"', "", None, "title is missing"),
        ('title = "Two stacks"', 'title = ""', 1, "title: title must be a string that is not empty"),
        ("runs = 2", "run = 2", 10, "fixed.run: run is no setting of a case; did you mean runs?"),
        ("runs = 2", 'runs = "2"', 10, "fixed.runs: runs must be a whole number, not '2'"),
        ("runs = 2", "runs = 0", 10, "runs must be at least 1, not 0"),
        ("runs = 2", "runs = true", 10, "runs must be a whole number, not True"),
        ("warmups = 1", "warmups = -1", 11, "warmups must be at least 0"),
        ("warmups = 1", "timeout_s = 0", 11, "timeout_s must be above 0"),
        ("warmups = 1", "tuning_seconds = -1", 11, "tuning_seconds must be at least 0"),
        ("warmups = 1", "gpu_memory = nan", 11, "gpu_memory must be a number"),
        ("warmups = 1", "loss = 1", 11, "loss must be true or false"),
        ("warmups = 1", "model_ = 'x'", 11, "did you mean model?"),
        ('name = "sweep"', 'nane = "sweep"', 14, "part[1].nane: nane is not known here; did you mean name?"),
        ('name = "sweep"', 'name = "sweep"\nruns = 3', 15, "runs is not known here; settings stand under fixed"),
        ("batch_size = [1, 2, 4]", "batch_sizes = [1, 2, 4]", 17, "batch_sizes is no setting of a case; did you mean batch_size"),
        ("batch_size = [1, 2, 4]", "batch_size = []", 17, "batch_size must be a list of at least one value"),
        ("batch_size = [1, 2, 4]", "batch_size = 4", 17, "batch_size must be a list of at least one value"),
        ("batch_size = [1, 2, 4]", "batch_size = [1, 'two']", 17, "batch_size must be a whole number, not 'two'"),
        ("batch_size = [1, 2, 4]", "batch_size = [1, 2, 1]", 17, "batch_size has a value twice"),
        ("batch_size = [1, 2, 4]", "a = [{ batch_size = 1 }, { seed = 1 }]", 17, "every point of an axis has the same settings"),
        ("batch_size = [1, 2, 4]", "batch_size = [1]\nb = [{ batch_size = 1 }]", 18, "batch_size is on another axis too"),
        ('name = "sweep"', 'name = "sweep"\nfixed = { batch_size = 3 }', 15, "batch_size is fixed and an axis of the part"),
        ('name = "other"\n', 'name = "one"\n', 24, "part[1].columns[2].name: 'one' is the name of an earlier column"),
        ('name = "other"\n', 'name = "other"\nbatch_size = 3\n', 25, "batch_size is an axis of the part; a column cannot fix it"),
        ('backend = "hf"', "backend = 3", 25, "backend must be a string"),
        ('backend = "hf"', 'backend = "hff"', 25, "part[1].columns[2].backend: backend 'hff' is unknown; did you mean hf"),
        ('column = "other"', 'column = "othr"', 28, "column 'othr' is not one of the part's; did you mean other?"),
        ('reason = "too slow there"', "", 27, "part[1].exclude[1]: reason is missing"),
        ("batch_size = [4]", "batch_sice = [4]", 29, "did you mean batch_size?"),
        ("[scale.tiny.parts.sweep.axes]", "[scale.tiny.parts.swep.axes]", 35, "swep is no part of the study; did you mean sweep?"),
        ("fixed = { runs = 1 }", "fixed = { runs = 1.5 }", 33, "scale.tiny.fixed.runs: runs must be a whole number"),
        ("fixed = { runs = 1 }", "settings = { runs = 1 }", 33, "settings is not known here"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_key_and_its_line(old: str, new: str, line: int | None, words: str) -> None:
    assert old in STUDY
    with pytest.raises(UserError) as caught:
        study_file(STUDY.replace(old, new, 1))
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert message.startswith("mine.toml: " if line is None else f"mine.toml, line {line}: ")


def test_what_a_scale_replaces_must_go_with_what_it_leaves() -> None:
    text = STUDY + "\n[scale.tiny.parts.sweep.fixed]\nbatch_size = 3\n"
    with pytest.raises(UserError, match=r"line 39: .*batch_size is fixed and an axis"):
        study_file(text)
    with pytest.raises(UserError, match="sequence_length is an axis of the part and fixed as well at this scale"):
        study_file(STUDY.replace('backend = "hf"', 'backend = "hf"\nsequence_length = 3') + "sequence_length = [1, 2]\n")
    columns = "\n[[scale.tiny.parts.sweep.columns]]\nname = 'only'\nbackend = 'native'\n"
    with pytest.raises(UserError, match="an exclusion names the column 'other', which the part has not got at this scale"):
        study_file(STUDY + columns)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('kv_dtype = ""', "kv_dtype must be a string that is not empty"),
        ('weights = "dumy"', "weights must be one of auto, dummy, not 'dumy'"),
        ('dtype = "float12"', "dtype must be one of auto, float32, float16, bfloat16, fp32, fp16, bf16, not 'float12'"),
        ('admission = "zigzg"', "admission must be one of continuous, zigzag, diagonal, row, not 'zigzg'"),
        ('api = "grpc"', "api must be one of auto, tgi, openai, not 'grpc'"),
        ('device = "cudo"', "device must be auto, cpu, cuda or cuda:N, not 'cudo'"),
        ('offload = "weight"', "offload weight: weights, weights:FRACTION, pages"),
        ('percent = "50 x"', "percent 50 x: six whole numbers"),
        ("percent = [50, 50]", "percent must be a string"),
        ("disk = true", "disk must be a string"),
        ("host_memory = 0", "host_memory must be above 0, not 0"),
        ("temperature = -1", "temperature must be a finite number of at least 0, not -1"),
        ("top_p = 1.5", "top_p must be a number above 0 and at most 1, not 1.5"),
        ("host_memory_limit = 5", "host_memory_limit is no setting of a case"),
    ],
)
def test_a_value_that_no_stack_takes_is_told_with_its_line(setting: str, words: str) -> None:
    name = setting.partition(" ")[0]
    text = "".join(line for line in STUDY.splitlines(keepends=True) if not line.startswith(f"{name} ="))
    text = text.replace("runs = 2\n", f"runs = 2\n{setting}\n")
    line = text.splitlines().index(setting) + 1
    with pytest.raises(UserError, match=f"^mine.toml, line {line}: fixed.{name}: {re.escape(words)}"):
        study_file(text)


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


@pytest.mark.parametrize(
    ("text", "words"), [("title = ", "not valid TOML"), ("a = " + "[" * 5000, "not valid TOML"), ("", "title is missing")]
)
def test_what_is_no_study_at_all(text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"mine.toml: {words}"):
        study_file(text)


@given(st.text(max_size=80), st.integers(0, 40))
def test_any_text_is_a_study_or_a_users_mistake(noise: str, at: int) -> None:
    lines = STUDY.splitlines()
    lines.insert(at % len(lines), noise)
    with suppress(UserError):  # any other error fails the test
        study_file("\n".join(lines)).study("tiny")


def test_a_table_that_is_wrong_is_told_with_its_line() -> None:
    table = '\n[[table]]\npart = "sweep"\ntitle = "T"\nrows = "batch_size"\ncolumns = "column"\ncell = "throughput"\n'
    assert len(study_file(STUDY + table).study().tables) == 1
    for old, new, words in (
        ('cell = "throughput"', 'cell = "{a\\n b}"', "line 43: table.1..cell: cell: {a b} is not {.source..figure"),
        ('part = "sweep"', 'part = "sw\\nep"', "line 39: table.1..part: sw ep is no part of the study"),
        ('cell = "throughput"', 'cell = "thruput"', "line 43: table.1..cell: cell: 'thruput' is no figure"),
        ('part = "sweep"', 'part = "swep"', "line 39: table.1..part: swep is no part of the study"),
        ('columns = "column"\n', "", "line 38: table.1.: columns is missing"),
    ):
        with pytest.raises(UserError, match=words):
            study_file(STUDY + table.replace(old, new))


def test_a_setting_is_offered_even_where_it_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY)
    assert find_study(str(path)).name == "mine"
    path.write_text('name = "called so"\n' + STUDY)
    assert find_study(str(path)).study("tiny").name == "called so"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("backend-swep", r"no study 'backend-swep'; did you mean backend-sweep\? \(one of your own is named by its file"),
        ("nothing/like.toml", "nothing/like.toml: No such file"),
    ],
)
def test_a_study_that_is_not_there(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_study(name)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(UserError, match="not text in UTF-8"):
        find_study(str(path))


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
