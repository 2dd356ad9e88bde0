"""What a benchmark is asked: what no model could do is refused, and the rest is cases."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.bench.backends.request import BenchRequest
from inferometer.errors import UserError
from inferometer.model.config import read_spec
from inferometer.model.spec import ModelSpec
from tiny_models import CONFIGS


def spec(**changes: Any) -> ModelSpec:
    return read_spec({**CONFIGS["llama"], **changes}, "tiny")


def request(**changes: Any) -> BenchRequest:
    return BenchRequest(**{"model": None, "batch_sizes": (1,), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": (1, 0)}, "--batch-size must be at least 1, not 0"),
        ({"batch_sizes": ()}, "--batch-size"),
        ({"sequence_length": 0}, "--sequence-length"),
        ({"decode_length": 0}, "--decode-length"),
        ({"runs": 0}, "--runs"),
        ({"warmups": -1}, "--warmups"),
        ({"backends": ("vllm",)}, "--backend vllm is unknown; use native or hf or hf-compile"),
        ({"backends": ()}, "--backend names no stack"),
        ({"loss": True}, "add --forward-only"),
        ({"loss": True, "forward_only": True, "sequence_length": 1}, "--sequence-length 2"),
        ({"forward_only": True, "decode_length": 8}, "--decode-length .* which --forward-only does not; leave it out"),
        ({"watermark": True, "backends": ("hf",)}, "--watermark"),
        ({"admission": "zigzag", "backends": ("native", "hf")}, "--admission .* --backend hf"),
        ({"admission": "zigzag", "forward_only": True}, "--admission .* --forward-only"),
        ({"admission": "spiral"}, "--admission must be one of"),
        ({"admission": "continuous", "group_size": 4}, "--group-size means nothing to --admission continuous"),
        ({"admission": "row", "num_groups": 2}, "--num-groups must be 1"),
        ({"admission": "zigzag", "group_size": 0}, "--group-size must be"),
        ({"group_size": 4}, "--group-size goes with"),
        ({"num_groups": 4}, "--num-groups goes with"),
    ],
)
def test_what_no_model_could_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        request(**changes).check()


def test_the_models_positions_are_the_limit() -> None:
    request(sequence_length=56, decode_length=8).check_model(spec())
    request(sequence_length=64, forward_only=True).check_model(spec())
    with pytest.raises(UserError, match="--sequence-length 57 and --decode-length 8 make 65 tokens, but tiny has 64 positions"):
        request(sequence_length=57, decode_length=8).check_model(spec())
    with pytest.raises(UserError, match="--sequence-length 65 make"):
        request(sequence_length=65, forward_only=True).check_model(spec())


def test_rounds_are_batch_sizes_of_all_backends() -> None:
    asked = request(batch_sizes=(4, 1), backends=("native", "hf"), gpu_memory=1.5, top_k=3)
    rounds = asked.rounds(spec(), dtype="float32", device="cpu", device_name=None)
    assert [[(case.batch_size, case.backend) for case in cases] for cases in rounds] == [
        [(4, "native"), (4, "hf")],
        [(1, "native"), (1, "hf")],
    ]
    assert rounds[0][0].memory_limit == 3 * 2**29
    assert rounds[0][0].top_k == 3


def test_an_admission_is_part_of_the_question_and_so_is_its_group_size() -> None:
    def cases(**changes: Any) -> tuple[Any, ...]:
        ((case,),) = request(**changes).rounds(spec(), dtype="float32", device="cpu", device_name=None)
        return case.admission, case.group_size, case.num_groups, case.case_id

    assert cases()[:3] == (None, None, None)
    assert cases(admission="continuous")[:3] == ("continuous", None, None)
    assert cases(admission="zigzag")[:3] == ("zigzag", 8, None)
    assert cases(admission="zigzag") == cases(admission="zigzag", group_size=8)
    assert len({cases(**given)[3] for given in ({}, {"admission": "zigzag"}, {"admission": "zigzag", "num_groups": 2})}) == 3


def test_an_encoder_generates_nothing() -> None:
    with pytest.raises(UserError, match=r"--decode-length .* tiny is an encoder; leave it out"):
        request(decode_length=8).check_model(read_spec(CONFIGS["bert"], "tiny"))


def test_an_encoder_has_no_admission() -> None:
    with pytest.raises(UserError, match=r"--admission .* tiny is an encoder"):
        request(admission="zigzag").check_model(read_spec(CONFIGS["bert"], "tiny"))
