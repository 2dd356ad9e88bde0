"""A study's cells as questions: the case that `bench` would have, and why one is not asked here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_worker import GIB, place
from studies import STUDY

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.machine.place import Place, find_place
from inferometer.bench.plan.forecast import Forecast, forecast
from inferometer.bench.plan.plan import plan, select
from inferometer.bench.plan.question import Question, questions
from inferometer.bench.study.file import read_study
from inferometer.bench.study.library import shipped
from inferometer.errors import UserError
from inferometer.hardware.detect import Machine
from inferometer.hardware.host import Host
from inferometer.hardware.nvidia import Gpu
from inferometer.model.presets import preset
from inferometer.model.quantisation import VERSION
from tiny_models import tiny_model

HERE = place()


def asked(more: str = "", where: Place = HERE, *, columns: str = '[[part.columns]]\nname = "one"\nbackend = "native"\n') -> list[Question]:
    text = f"""
title = "t"
[fixed]
model = "opt-1.3b"
weights = "dummy"
dtype = "fp16"
batch_size = 4
{more}
[[part]]
name = "p"
{columns}
"""
    return questions(read_study(text, "mine", "mine.toml").study(), lambda device: where)


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


def test_shards_lie_on_the_gpus_from_the_named_one_on() -> None:
    second = find_place("cuda:1", Machine(host=HOST, gpus=(CARD, replace(CARD, index=1), replace(CARD, index=2))))
    assert second.lacks(2) is None
    assert second.lacks(3) == "--tensor-parallel 3 needs 3 GPUs, and there are 2 here"


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

# Places


HOST = Host(model="c", vendor="v", cores=2, flags=("avx2", "amx_bf16"), memory_bytes=8 * GIB, cache_bytes=None)
CARD = Gpu(index=0, name="NVIDIA L4", uuid=None, memory_bytes=23034 << 20, driver="1")


def test_places_by_the_value_of_device() -> None:
    machine = Machine(host=HOST, gpus=(CARD, replace(CARD, index=1)))
    cpu = find_place("cpu", machine)
    assert (cpu.torch_name, cpu.slug, cpu.multiplies) == ("cpu", "cpu", ("float32", "bfloat16"))
    card = find_place("cuda:1", machine)
    assert (card.torch_name, card.slug, card.count, card.kind) == ("cuda:1", "l4", 2, "cuda")
    assert card.memory_bytes == card.free_bytes() == 23034 << 20
    unknown = find_place("cuda", Machine(host=HOST, gpus=(replace(CARD, name="something"),)))
    assert (unknown.slug, unknown.spec, unknown.name) == (None, None, "something")
    assert find_place("auto", Machine(host=HOST, gpus=())).kind == "cpu"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:x", "gpu", "", "cuda:"])
def test_places_that_are_not_here(device: str) -> None:
    with pytest.raises(UserError, match="--device"):
        find_place(device, Machine(host=HOST, gpus=()))


# Forecasts


def test_what_a_forecast_says_of_fitting() -> None:
    assert Forecast().expected == "ok"
    assert Forecast(peak_bytes=3 * GIB, least_bytes=2 * GIB, capacity_bytes=4 * GIB).expected == "ok"
    likely = Forecast(peak_bytes=5 * GIB, least_bytes=2 * GIB, capacity_bytes=4 * GIB)
    assert (likely.expected, likely.impossible) == ("oom", None)
    assert likely.too_much == "5.0 GiB are expected to be needed, and 4.0 GiB are there"
    surely = Forecast(peak_bytes=9 * GIB, least_bytes=8 * GIB, capacity_bytes=4 * GIB)
    assert surely.impossible == "weights and KV cache alone need 8.0 GiB, and 4.0 GiB are there"


def test_a_forecast_of_a_case() -> None:
    (question,) = asked("sequence_length = 100\ndecode_length = 20")
    found = forecast(question)
    assert found.run_s is not None
    assert found.seconds is not None
    assert 0.1 < found.run_s < 10
    runs = question.request.runs + question.request.warmups
    # The check runs few of the steps, and energy each phase for two seconds.
    assert found.run_s * runs < found.seconds - 2 * 2.0 < found.run_s * (runs + 4)
    (long,) = asked("sequence_length = 100\ndecode_length = 400\nenergy = false")
    longer = forecast(long)
    assert longer.run_s is not None
    assert longer.seconds is not None
    assert longer.run_s * runs < longer.seconds < longer.run_s * (runs + 0.3)
    assert found.peak_bytes is not None
    assert found.least_bytes is not None
    assert 2 * 1.3e9 < found.least_bytes < found.peak_bytes < found.capacity_bytes  # type: ignore[operator]
    assert 240 < found.time_limit_s < 1000
    (capped,) = asked("sequence_length = 100\ngpu_memory = 2")
    assert forecast(capped).impossible is not None


def test_of_groups_that_may_take_turns_only_weights_are_certain() -> None:
    (whole,), (groups,) = asked("sequence_length = 500"), asked("sequence_length = 500\nadmission = 'diagonal'")
    assert forecast(groups).least_bytes == forecast(groups).weight_bytes
    assert forecast(whole).least_bytes > forecast(groups).least_bytes  # type: ignore[operator]


def test_nothing_is_known_of_an_unknown_card_or_stack() -> None:
    (question,) = asked(where=replace(HERE, slug=None, spec=None))
    assert forecast(question) == Forecast(capacity_bytes=HERE.memory_bytes)
    assert forecast(question).time_limit_s == 900


# What --only names


def only(*words: str) -> list[Any]:
    found = [planned.question for planned in plan(read_study(STUDY, "mine", "mine.toml").study(), lambda device: place("cpu"), words)]
    return [(question.cell.column, question.case.batch_size) for question in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [("one", 1), ("other", 1), ("one", 2), ("other", 2), ("one", 4), ("other", 4)]),
        (("one",), [("one", 1), ("one", 2), ("one", 4)]),
        (("one", "other", "batch_size=2"), [("one", 2), ("other", 2)]),
        (("sweep", "column=other", "batch_size=1,4"), [("other", 1), ("other", 4)]),
        (("batch_size=1", "batch_size=4", "backend=native"), [("one", 1), ("one", 4)]),
        (("part=sweep", "dtype=float32", "one", "batch_size=1"), [("one", 1)]),
    ],
)
def test_only_what_is_named(words: tuple[str, ...], expected: list[tuple[str, int]]) -> None:
    assert only(*words) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("on", "--only on is no part and no column; did you mean one?"),
        ("batch=1", "--only batch=1: no case has a batch; did you mean batch_size?"),
        ("batch_size=3", "--only batch_size=3: no case has batch_size 3; known are 1, 2, 4"),
        ("batch_size=1,3", "no case has batch_size 3"),
        ("column=", "no case has column ;"),
    ],
)
def test_only_what_is_not_there(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        only(word)
    assert message in str(caught.value)


def test_a_name_with_a_comma_in_it() -> None:
    text = STUDY.replace('"one"', '"one, two"')
    found = questions(read_study(text, "mine", "mine.toml").study(), lambda device: place("cpu"))
    assert {question.cell.column for question in select(found, ["column=one, two"])} == {"one, two"}


def test_a_format_is_forecast_as_what_the_stack_makes_of_it() -> None:
    found = []
    for name in ("int8", "bitsandbytes"):
        (question,) = asked("sequence_length = 8", columns=f'[[part.columns]]\nname = "one"\nbackend = "hf"\nquantize = "{name}"\n')
        found.append(forecast(question).run_s)
    assert found[0] is not None
    assert found[0] == found[1]
