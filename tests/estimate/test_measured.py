"""The measured rows: what stands in them, that their splits are clean, and that a damaged file is an error and not a silence."""

from __future__ import annotations

import pickle
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.estimate.measured import MeasuredRow, load_calibration, load_regimes, load_rows
from inferometer.estimate.measured.load import check, read_regimes, read_rows
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import link_between
from inferometer.model.formats import COMPUTE_DTYPES, weight_format
from inferometer.model.presets import preset

from .measured_rows import refusal, regime, row, split

FOLDER = files("inferometer.estimate.measured")
FILES = sorted(entry.name for entry in FOLDER.joinpath("rows").iterdir() if entry.name.endswith(".toml"))
REGIMES = list(load_regimes())

# From the table of gates: held-out rows, gate, stretch.
GATES = {
    "001-runtime-1gpu": (12, 0.07, 0.05),
    "001-runtime-8gpu": (12, 0.12, 0.07),
    "001-memory-1gpu": (12, 0.003, 0.002),
    "001-memory-8gpu": (12, 0.03, 0.01),
    "002": (30, 0.15, 0.08),
    "002-bitsandbytes": (10, 0.15, 0.08),
    "003": (11, 0.15, 0.08),
    "004": (41, 0.10, 0.06),
    "000-latency": (30, 0.08, 0.05),
    "000-memory": (26, 0.015, 0.01),
    "fastertransformer": (242, 0.12, 0.08),
    "mlenergy": (85, 0.15, 0.08),
}


def _document(name: str) -> dict[str, Any]:
    """A copy of one's own: to parse takes longer than all that is tested of it."""
    found: dict[str, Any] = pickle.loads(_parsed(name))
    return found


@cache
def _parsed(name: str) -> bytes:
    return pickle.dumps(tomllib.loads(FOLDER.joinpath("rows", name).read_text("utf-8")))


def _find(name: str, row_id: str) -> MeasuredRow:
    return next(each for each in load_rows(name) if each.id == row_id)


@pytest.mark.parametrize(("name", "figures"), GATES.items())
def test_the_gates_are_those_that_were_asked_for(name: str, figures: tuple[int, float, float]) -> None:
    found = load_regimes()[name]
    held = [each for each in load_rows(name) if each.counted and each.id not in found.split.fitted]
    assert (len(held), found.gate, found.stretch) == figures
    assert found.gates


def test_only_the_runtime_on_one_gpu_gates_its_worst_row() -> None:
    assert {name: each.worst_gate for name, each in load_regimes().items() if each.worst_gate} == {"001-runtime-1gpu": 0.18}


def test_our_own_runs_inform_and_do_not_gate() -> None:
    for name in REGIMES:
        assert load_regimes()[name].gates != name.startswith("own-") or load_regimes()[name].gate is None
    assert load_regimes()["own-time"].gate == 0.08
    assert load_regimes()["own-memory"].gate == 0.01


@pytest.mark.parametrize("name", REGIMES)
def test_rows_name_what_exists(name: str) -> None:
    for each in load_rows(name):
        device = find_device(each.device)
        assert preset(each.model) is not None, each.model
        assert each.dtype in COMPUTE_DTYPES
        assert each.source
        if each.quantize:
            weight_format(each.quantize, each.dtype)
        if each.gpus > 1:
            link_between(device, each.gpus, each.link)


def test_fitted_rows_are_those_that_the_splits_say() -> None:
    fitted = {name: [each for each in load_rows(name) if each.id in load_regimes()[name].split.fitted] for name in REGIMES}
    assert {each.gpus for each in fitted["002"]} == {2}
    assert len(fitted["002"]) == sum(each.gpus == 2 for each in load_rows("002"))
    assert len(fitted["002-bitsandbytes"]) == 2
    assert {(each.model, each.batch) for each in fitted["003"]} == {("gpt3-125m", 4), ("gpt3-1.3b", 4), ("gpt3-6.7b", 4)}
    columns = [(each.stack, each.dtype) for each in fitted["004"]]
    assert {column: columns.count(column) for column in columns} == {
        ("hf-eager", "float32"): 3,
        ("hf-eager", "bfloat16"): 3,
        ("deepspeed", "float16"): 3,
    }
    for name in ("000-latency", "000-memory"):
        wanted = {each.id for each in load_rows(name) if each.groups in (4, 8) and each.prompt_tokens == 512}
        assert {each.id for each in fitted[name]} == wanted


@pytest.mark.parametrize("name", REGIMES)
def test_every_counted_row_is_left_out_once_a_key(name: str) -> None:
    rows, division = load_rows(name), load_regimes()[name].split
    folds = division.folds(rows)
    assert {fold.key for fold in folds} == set(division.leave_out)
    for key in division.leave_out:
        ids = [row_id for fold in folds if fold.key == key for row_id in fold.ids]
        assert sorted(ids) == sorted(each.id for each in rows if each.counted)
    assert not (folds and division.fitted)


def test_models_of_one_shape_are_left_out_together() -> None:
    folds = {fold.name: fold for fold in load_regimes()["mlenergy"].split.folds(load_rows("mlenergy"))}
    assert "model llama-3.3-70b" not in folds
    models = {_find("mlenergy", row_id).model for row_id in folds["model llama-3.1-70b"].ids}
    assert models == {"llama-3.1-70b", "llama-3.3-70b"}


@pytest.mark.parametrize(
    ("name", "row_id", "value"),
    [
        ("001-runtime-1gpu", "opt-1.3b-rtx-a5000", 693.77),
        ("001-runtime-8gpu", "clm-1.1b-rtx-a6000", 568.35),
        ("001-memory-1gpu", "opt-6.7b-rtx-a6000", 15.48),
        ("002", "tp8-prefill-b16", 857.91),
        ("002", "tp4-decode-b4", 18.83),
        ("002-bitsandbytes", "tp8-short-decode-b1", 86.81),
        ("002-tp1", "tp1-decode-b32", 243.98),
        ("003", "gpt3-2.7b-b16", 116.0),
        ("004", "fp32-b896", 24530.0),
        ("004", "fp16-b1", 1620.0),
        ("000-latency", "diagonal-n16-p1024", 11101.0),
        ("000-memory", "zigzag-n32-p512", 28.987),
        ("fastertransformer", "megatron-gpt-20b-tp4-b64-200+200", 4536.0),
        ("fastertransformer", "megatron-gpt-175b-tp8-b32-128+8", 1547.44),
        ("mlenergy", "llama-3.1-8b-1gpu-chat-b511", 0.0702),
    ],
)
def test_values_are_as_published(name: str, row_id: str, value: float) -> None:
    assert _find(name, row_id).value == pytest.approx(value, rel=1e-3)


def test_energy_is_power_over_the_rate() -> None:
    power = {each.id: each.value for each in load_rows("mlenergy-power")}
    for each in load_rows("mlenergy"):
        assert each.tok_s is not None
        assert each.value == pytest.approx(power[each.id] / each.tok_s, rel=2e-3)


def test_known_defects_are_said_and_count_all_the_same() -> None:
    for name, row_id in (
        ("002", "tp8-prefill-b16"),
        ("003", "gpt3-2.7b-b4"),
        ("004", "fp32-b640"),
        ("001-runtime-8gpu", "opt-6.7b-rtx-a5000"),
    ):
        found = _find(name, row_id)
        assert found.note
        assert found.counted


def test_an_unknown_regime_is_named_with_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"regime 005 is unknown; the regimes are 001-runtime-1gpu, .*"):
        load_rows("005")


def test_a_missing_calibration_is_named() -> None:
    with pytest.raises(UserError, match="calibration nowhere"):
        load_calibration("nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": 0.0}, "value must be a positive number"),
        ({"value": float("nan")}, "value must be a positive number"),
        ({"gpus": 2}, "2 GPUs and parallel 'none'"),
        ({"mode": "groups", "new_tokens": 4}, "go with mode groups"),
        ({"mode": "decode"}, "new_tokens is 0 with mode decode"),
        ({"new_tokens": 3}, "new_tokens is 3 with mode prefill"),
        ({"loss": True}, "a loss goes with mode forward"),
        ({"mode": "groups", "admission": "zigzag", "group_size": 8, "groups": 4, "new_tokens": 2, "batch": 30}, "not a batch of 30"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row(**changes)


def test_the_mean_context_is_the_middle_of_the_decode() -> None:
    assert row(mode="decode", new_tokens=7).mean_context == 128 + 3


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40)  # of each of a dozen files, which one reader reads
@given(data=st.data())
def test_a_damaged_file_is_one_line_or_rows(name: str, data: st.DataObject) -> None:
    document = _document(name)
    where = data.draw(st.sampled_from(["file", "table", "rows", "cell", "columns", "notes"]))
    table = data.draw(st.sampled_from(document["table"]))
    junk = data.draw(
        st.sampled_from([None, "", "x", 0, -1, 1.5, True, [], [[]], {}, {"a": 1}, float("nan"), "{model}", "{0}", "{a.b}", "{"])
    )
    if where == "file":
        document[data.draw(st.sampled_from([*document, "extra"]))] = junk
    elif where == "table":
        table[data.draw(st.sampled_from([*table, "extra"]))] = junk
    elif where == "cell":
        cells = data.draw(st.sampled_from(table["rows"]))
        cells[data.draw(st.integers(0, len(cells) - 1))] = junk
    else:
        table[where] = junk
    said = refusal(lambda: list(read_rows(document, name)))
    assert said is None or said.startswith(name)


def test_a_note_of_no_row_is_an_error() -> None:
    document = _document("document_003.toml")
    document["table"][0]["notes"] = {"gpt3-2.7b-b5": "no such batch"}
    with pytest.raises(UserError, match=r"a note is of gpt3-2\.7b-b5, which is no row"):
        list(read_rows(document, "document_003.toml"))


@pytest.mark.parametrize(
    ("division", "rows", "message"),
    [
        (split(), [], "has no rows"),
        (split(), [row(), row()], "a row is there twice"),
        (split(), [row(quantity="peak_gib")], "a row is peak_gib, not time_ms"),
        (split(("b",)), [row()], "b is no counted row"),
        (split(("a row",)), [row()], "no row is held out"),
        (split(("a row",)), [row(counted=False), row(id="b")], "a row is no counted row"),
        (split(leave_out=("model",), gpt="opt"), [row()], "alike names gpt"),
    ],
)
def test_a_regime_is_checked_against_its_rows(division: Any, rows: list[MeasuredRow], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(regime(division), rows)


@settings(deadline=None)
@given(
    splits=st.dictionaries(
        st.sampled_from(["one", "two"]),
        st.one_of(
            st.integers(),
            st.fixed_dictionaries(
                {},
                optional={
                    "fitted": st.sampled_from([[], ["a"], "a", [1]]),
                    "leave_out": st.sampled_from([[], ["model"], ["model", "model"], ["colour"], 3]),
                    "alike": st.sampled_from([{}, {"a": "b"}, {"a": 1}, 4]),
                    "more": st.just(1),
                },
            ),
        ),
    )
)
def test_a_damaged_split_is_one_line(splits: dict[str, Any]) -> None:
    said = refusal(lambda: read_regimes({"one": {"title": "One", "quantity": "time_ms"}}, splits))
    assert said is not None or splits.keys() == {"one"}
    assert said is None or said.startswith("splits.toml")
