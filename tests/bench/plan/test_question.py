"""A study's cells as questions: the case that `bench` would have, and why one is not asked here."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_worker import GIB, HERE, asked, place
from studies import STUDY

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.plan.question import questions
from inferometer.bench.study.file import read_study
from inferometer.bench.study.library import shipped
from inferometer.errors import UserError
from inferometer.model.presets import preset
from inferometer.model.quantisation import VERSION
from tiny_models import tiny_model


def test_the_case_is_the_one_that_bench_would_have() -> None:
    (question,) = asked("sequence_length = 8\nadmission = 'zigzag'\nseed = 3")
    request = BenchRequest(
        model="opt-1.3b", weights="dummy", dtype="float16", batch_sizes=(4,), sequence_length=8, admission="zigzag", seed=3
    )
    known = preset("opt-1.3b")
    assert known is not None
    ((case,),) = request.rounds(known.spec(), dtype="float16", device="l4", device_name="x")
    assert question.case == case
    assert question.case.case_id == case.case_id
    assert question.refusal is None


@pytest.mark.parametrize("name", ["int8", "int4-g64"])
def test_a_folder_that_quantize_wrote_is_a_case_of_its_format(tmp_path: Path, name: str) -> None:
    """Else its bytes, and with them its bound, would be those of plain weights."""
    folder = tiny_model(tmp_path, "llama", quantization_config={"quant_method": "inferometer", "version": VERSION, "format": name})
    text = f"""
title = "t"
[fixed]
model = "{folder}"
weights = "dummy"
batch_size = 4
sequence_length = 8
decode_length = 2
[[part]]
name = "p"
[[part.columns]]
name = "one"
backend = "native"
"""
    (question,) = questions(read_study(text, "mine", "mine.toml").study(), lambda device: HERE)
    assert question.case.quantize == question.request.quantize == name
    assert question.refusal is None


def test_a_checkpoint_that_another_program_quantised_is_asked_of_what_runs_it(tmp_path: Path) -> None:
    stored = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    folder = tiny_model(tmp_path, "llama", quantization_config=stored, max_position_embeddings=2048)
    native, hf = asked(
        "sequence_length = 8",
        columns="".join(f'[[part.columns]]\nname = "{each}"\nbackend = "{each}"\nmodel = "{folder}"\n' for each in ("native", "hf")),
    )
    assert (native.case.quantize, native.refusal) == ("gptq-int4-g64", None)
    assert hf.refusal is not None
    assert "--backend hf would measure widened" in hf.refusal


def test_an_alias_is_the_same_question() -> None:
    (one,), (other,) = asked(), asked().copy()
    (named,) = questions(read_study(STUDY.replace('"tiny-opt"', '"facebook/opt-1.3b"'), "m", "m.toml").study("tiny"), lambda device: HERE)[
        :1
    ]
    assert one.case.case_id == other.case.case_id
    assert named.case.model == "opt-1.3b"


@pytest.mark.parametrize("fixed", ["", "\ndecode_length = 3"])
def test_an_encoder_is_run_forward(fixed: str) -> None:
    """Whatever the study has the models generate that can."""
    (question,) = asked(f"sequence_length = 8{fixed}", columns='[[part.columns]]\nname = "one"\nmodel = "bert-base"\n')
    assert question.case.forward_only
    assert question.case.decode_length is None
    assert question.refusal is None


@pytest.mark.parametrize(
    ("more", "columns", "words"),
    [
        ("tensor_parallel = 2", None, "--tensor-parallel 2 needs 2 GPUs, and there is 1 here"),
        ("kv_dtype = 'fp8'", 'name = "one"\nbackend = "hf"', "--kv-dtype fp8 is not run by --backend hf"),
        ("sequence_length = 4000", None, "has 2048 positions"),
        ("", 'name = "one"\nbackend = "hf"\nadmission = "zigzag"', "--admission is the native engine's"),
        ("", 'name = "one"\nquantize = "int5"', "--quantize int5"),
        ("", 'name = "one"\nmodel = "no-such-model"', "no-such-model"),
        ("", 'name = "one"\ndtype = "bfloat16"', "x does not multiply bfloat16; use --dtype float32 or float16"),
    ],
)
def test_why_a_case_is_not_run_here(more: str, columns: str | None, words: str) -> None:
    (question,) = asked(more, columns=f"[[part.columns]]\n{columns}" if columns else '[[part.columns]]\nname = "one"\n')
    assert question.refusal is not None
    assert words in question.refusal


def test_a_cpu_takes_any_number_of_shards_that_divides_the_model() -> None:
    four, five = questions(
        read_study(SHARDED, "mine", "mine.toml").study(),
        lambda device: place("cpu"),
    )
    assert (four.case.tensor_parallel, four.request.tensor_parallel, four.refusal) == (4, 4, None)
    assert five.refusal is not None
    assert "--tensor-parallel 5 does not divide opt-1.3b" in five.refusal


def test_what_is_left_out_says_why() -> None:
    found = questions(read_study(STUDY, "mine", "mine.toml").study(), lambda device: place("cpu"))
    assert [question.refusal for question in found if question.refusal] == ["left out of the study: too slow there"]


def test_a_cap_on_memory_is_the_case_s_and_kept_for_every_backend() -> None:
    columns = "".join(f'[[part.columns]]\nname = "{name}"\nbackend = "{name}"\n' for name in ("native", "hf"))
    native, hf = asked("gpu_memory = 2.5", columns=columns)
    assert native.case.memory_limit == hf.case.memory_limit == int(2.5 * GIB)
    assert (native.request.gpu_memory, hf.request.gpu_memory) == (2.5, None)
    assert hf.refusal is None


@pytest.mark.parametrize("model", ["opt-1.3b", "no-such-model"])
def test_where_weights_lie_is_the_case_that_bench_would_have(model: str) -> None:
    more = 'percent = "30, 50 100 0 100 0"\ndisk = "/tmp/weights"\nhost_memory = 1.5'
    (question,) = asked(more, columns=f'[[part.columns]]\nname = "one"\nmodel = "{model}"\n')
    case, request = question.case, question.request
    assert (request.percent, request.disk, request.host_memory) == ((30, 50, 100, 0, 100, 0), "/tmp/weights", 1.5)
    assert (case.percent, case.disk, case.host_memory_limit) == ("30 50 100 0 100 0", True, int(1.5 * GIB))
    assert question.refusal is None or model in question.refusal


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("decode_only = true\nforward_only = true", "decode_only has steps"),
        ("decode_only = true\nsequence_length = 1", "at least 2"),
        ("loss = true", "loss goes with forward_only"),
    ],
)
def test_settings_that_make_no_case(more: str, words: str) -> None:
    with pytest.raises(UserError, match=f"part p, column one: .*{words}"):
        asked(more)


def test_a_batch_is_needed() -> None:
    text = STUDY.replace("batch_size = [1, 2, 4]", "seed = [1, 2]").replace("batch_size = [4]", "seed = [2]")
    with pytest.raises(UserError, match="part sweep: batch_size is missing"):
        questions(read_study(text.partition("[scale")[0], "mine", "mine.toml").study(), lambda device: HERE)


def test_one_process_a_column_whatever_its_cases() -> None:
    found = questions(read_study(STUDY, "mine", "mine.toml").study(), lambda device: place("cpu"))
    assert len({question.process for question in found}) == 2
    assert len({question.key for question in found}) == len(found)
    tensor_parallel = questions(shipped()["tensor-parallel"].study(), lambda device: HERE)
    assert len({question.process for question in tensor_parallel}) == 2 * 4


def test_every_question_of_the_shipped_studies_can_be_asked() -> None:
    for name, file in shipped().items():
        for scale in file.scales:
            found = questions(file.study(scale), lambda device: HERE)
            assert len({question.key for question in found}) == len(found), f"{name}: each is asked once"


SHARDED = """
title = "Shards"
summary = "One."
[fixed]
model = "opt-1.3b"
weights = "dummy"
dtype = "float32"
batch_size = 1
sequence_length = 8
decode_length = 2
[[part]]
name = "p"
[part.axes]
tensor_parallel = [4, 5]
[[part.columns]]
name = "one"
backend = "native"
"""
