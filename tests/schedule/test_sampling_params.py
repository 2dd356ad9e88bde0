"""The parameters of a request: what is accepted, what is refused, and how."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.schedule.sampling import ParameterError, SamplingParams, check


def test_fields_their_order_and_defaults_are_the_contract() -> None:
    assert [(field.name, field.default) for field in dataclasses.fields(SamplingParams)] == [
        ("max_new_tokens", 20),
        ("do_sample", False),
        ("temperature", 1.0),
        ("top_k", 0),
        ("top_p", 1.0),
        ("typical_p", 1.0),
        ("repetition_penalty", 1.0),
        ("frequency_penalty", 0.0),
        ("presence_penalty", 0.0),
        ("logit_bias", None),
        ("seed", None),
        ("stop", ()),
        ("stop_token_ids", ()),
        ("ignore_eos", False),
        ("min_new_tokens", 0),
        ("prompt_logprobs", False),
        ("top_logprobs", 0),
        ("watermark", False),
        ("truncate", None),
    ]


NUMBERS = ("temperature", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
COUNTS = ("max_new_tokens", "top_k", "min_new_tokens", "top_logprobs", "seed", "truncate")
FLAGS = ("do_sample", "ignore_eos", "prompt_logprobs", "watermark")

REFUSED = [
    *[(name, value) for name in NUMBERS for value in (math.nan, math.inf, -math.inf, True, "0.5", None, 1j, [1.0], 10**400)],
    *[(name, value) for name in COUNTS for value in (True, 1.0, "1", -1, math.nan, [1])],
    *[(name, None) for name in ("max_new_tokens", "top_k", "min_new_tokens", "top_logprobs")],
    *[(name, value) for name in FLAGS for value in (0, 1, None, "true", np.True_)],
    ("max_new_tokens", 0),
    ("truncate", 0),
    ("temperature", -1e-9),
    *[(name, value) for name in ("top_p", "typical_p") for value in (0, 0.0, -0.1, 1.0000001, 5)],
    *[("repetition_penalty", value) for value in (0, -1.0)],
    ("seed", 2**64),
    ("min_new_tokens", 21),
    *[("stop", value) for value in ("", [""], ["a", ""], [1], b"x", None, 3, {"a": 1})],
    *[("stop_token_ids", value) for value in (5, "5", [-1], [1.0], [True], ["5"], None)],
    *[
        ("logit_bias", value)
        for value in ([1], "x", {-1: 1.0}, {"5": 1.0}, {True: 1.0}, {1.0: 1.0}, {5: math.nan}, {5: math.inf}, {5: "1"}, {5: True})
    ],
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda value: repr(value)[:30])
def test_a_bad_value_is_refused_in_one_line_that_names_the_field(name: str, value: object) -> None:
    with pytest.raises(UserError) as refusal:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    message = str(refusal.value)
    assert name in message
    assert "must be" in message
    assert len(message.splitlines()) == 1
    assert len(message) < 250


def test_the_message_shows_the_value_and_the_range() -> None:
    with pytest.raises(UserError, match=r"^top_p must be a number above 0 and at most 1, not 1\.5$"):
        SamplingParams(top_p=1.5)
    with pytest.raises(UserError, match=r"^seed must be a whole number from 0 to 18446744073709551615, not -1$"):
        SamplingParams(seed=-1)
    with pytest.raises(UserError, match=r"^min_new_tokens must be at most max_new_tokens \(5\), not 6$"):
        SamplingParams(max_new_tokens=5, min_new_tokens=6)


def test_a_refusal_is_told_by_other_names_wherever_it_names_a_parameter() -> None:
    """And nowhere else: what was given may look like a name. It is the same in another process."""
    with pytest.raises(ParameterError) as both:
        SamplingParams(max_new_tokens=5, min_new_tokens=6)
    assert both.value.told(str.upper) == "MIN_NEW_TOKENS must be at most MAX_NEW_TOKENS (5), not 6"
    with pytest.raises(ParameterError) as given:
        SamplingParams(seed="seed")  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(given.value))
    assert again.told(str.upper) == f"SEED must be a whole number from 0 to {2**64 - 1}, not 'seed'"
    assert (str(again), again.rule) == (str(given.value), given.value.rule)


@pytest.mark.parametrize(
    "value", ["two\nlines" * 1000, np.zeros((50, 50)), -(10**5000), ["x" * 10_000]], ids=["text", "array", "number", "list"]
)
def test_the_message_stays_short_whatever_the_value(value: object) -> None:
    with pytest.raises(UserError) as refusal:
        SamplingParams(max_new_tokens=value)  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_edges_are_accepted() -> None:
    params = SamplingParams(
        max_new_tokens=1,
        min_new_tokens=1,
        temperature=0,
        top_k=2**70,
        top_p=5e-324,
        typical_p=1,
        repetition_penalty=5e-324,
        frequency_penalty=-1e308,
        seed=2**64 - 1,
        logit_bias={0: -1e308},
        truncate=1,
    )
    assert params.seed == 2**64 - 1
    assert params.temperature == 0.0


def test_values_are_kept_in_one_form() -> None:
    params = SamplingParams(
        max_new_tokens=np.int32(7),  # type: ignore[arg-type]
        temperature=1,
        top_p=Fraction(1, 2),  # type: ignore[arg-type]
        stop=["a", "b"],  # type: ignore[arg-type]
        stop_token_ids=range(3),  # type: ignore[arg-type]
        logit_bias={np.int64(3): 2},  # type: ignore[dict-item]
    )
    assert (type(params.max_new_tokens), type(params.temperature), type(params.top_p)) == (int, float, float)
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (0, 1, 2)
    assert params.logit_bias == {3: 2.0}
    assert [type(key) for key in params.logit_bias] == [int]


def test_one_stop_string_stands_for_a_tuple_of_it() -> None:
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)  # type: ignore[arg-type]


def test_the_callers_dictionary_is_not_shared() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_params_are_frozen_hashable_comparable_and_picklable() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2.0}, stop=("x",)))
    assert params != SamplingParams(logit_bias={1: 3.0}, stop=("x",))
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, top_k=4).top_k == 4
    with pytest.raises(UserError):
        dataclasses.replace(params, top_k=-4)


@pytest.mark.parametrize(
    ("params", "samples"),
    [
        ({}, False),
        ({"do_sample": True}, True),
        ({"temperature": 0.7}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "do_sample": True, "top_k": 5, "top_p": 0.5, "typical_p": 0.5}, False),
        ({"top_k": 1}, True),
        ({"top_p": 0.99}, True),
        ({"typical_p": 0.99}, True),
        ({"seed": 3}, False),
        ({"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": 1.0, "watermark": True}, False),
    ],
)
def test_a_request_samples_iff_asked_or_tempered_or_filtered(params: dict[str, float], samples: bool) -> None:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    assert (made.samples, made.greedy) == (samples, not samples)


@given(
    name=st.sampled_from([*NUMBERS, *COUNTS, *FLAGS, "stop", "stop_token_ids", "logit_bias"]),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.lists(st.integers() | st.text()),
        st.dictionaries(st.integers() | st.text(), st.floats() | st.text()),
    ),
)
def test_any_value_is_either_kept_or_refused_in_one_line(name: str, value: object) -> None:
    try:
        kept = getattr(SamplingParams(**{name: value}), name)  # type: ignore[arg-type]
    except UserError as error:
        refusal = str(error)
    else:
        if isinstance(value, str | list):
            kept, value = list(kept), [value] if isinstance(value, str) else value
        assert kept == value
        return
    assert name in refusal
    assert len(refusal.splitlines()) == 1


@given(vocabulary=st.integers(1, 1000), token_id=st.integers(0, 2000), field=st.sampled_from(["logit_bias", "stop_token_ids"]))
def test_check_refuses_tokens_that_the_model_lacks(vocabulary: int, token_id: int, field: str) -> None:
    params = SamplingParams(logit_bias={token_id: 1.0}) if field == "logit_bias" else SamplingParams(stop_token_ids=(token_id,))
    if token_id < vocabulary:
        check(params, vocabulary)
    else:
        with pytest.raises(UserError, match=rf"^{field} names token {token_id}, but the model has tokens 0 to {vocabulary - 1}$"):
            check(params, vocabulary)


def test_the_floor_does_not_import_torch() -> None:
    modules = "inferometer.schedule.sampling, inferometer.schedule.completion"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
