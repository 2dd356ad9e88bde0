"""What is said where a study is wrong: the key, the line and the remedy."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import STUDY, study_file

from inferometer.bench.study.library import find_study
from inferometer.errors import UserError


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
