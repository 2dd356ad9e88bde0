from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from inferometer.bench.records.case import Case


def case(**changes: Any) -> Case:
    values: dict[str, Any] = {
        "model": "m", "backend": "native", "dtype": "float32", "device": "cpu", "batch_size": 2, "sequence_length": 7, "decode_length": 5,
    }  # fmt: skip
    return Case(**{**values, **changes})


def test_the_id_is_the_same_in_another_process() -> None:
    code = f"from inferometer.bench.records.case import Case\nprint(({case()!r}).case_id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout.strip() == case().case_id
    assert len(case().case_id) == 16


def test_every_field_makes_another_question() -> None:
    other = {str: "other", int: 3, float: 0.5, bool: True}
    ids = {case().case_id}
    changed = 0
    for field in fields(Case):
        if field.name in ("forward_only", "loss", "decode_length"):
            continue
        kind = next(k for k in (bool, float, int, str) if k.__name__ in str(field.type))
        ids.add(replace(case(), **{field.name: other[kind]}).case_id)
        changed += 1
    ids.add(case(decode_length=6).case_id)
    ids.add(case(decode_length=None, forward_only=True).case_id)
    ids.add(case(decode_length=None, forward_only=True, loss=True).case_id)
    assert len(ids) == changed + 4


def test_a_workload_that_is_none_is_refused() -> None:
    for changes in ({"batch_size": 0}, {"sequence_length": 0}, {"decode_length": 0}, {"loss": True}, {"forward_only": True}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            case(**changes)


def test_unset_sampling_is_greedy_and_ends_nowhere() -> None:
    params = case().sampling_params()
    assert params.greedy
    assert params.ignore_eos
    assert params.max_new_tokens == 5
    assert not case(top_k=5).sampling_params().greedy
    assert case(temperature=0.5, top_p=0.9).sampling_params().temperature == 0.5
