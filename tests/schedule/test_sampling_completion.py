"""Completions hold together."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from inferometer.schedule.completion import Completion


def completion(**changes: Any) -> Completion:
    fields: dict[str, Any] = {
        "prompt_token_ids": [1, 2],
        "token_ids": [3],
        "text": "x",
        "logprobs": [-0.5],
        "prompt_logprobs": None,
        "finish_reason": "length",
    }
    return Completion(**(fields | changes))


def test_a_completion_can_be_a_prompt_again() -> None:
    made = completion()
    assert made.prompt_token_ids + made.token_ids == [1, 2, 3]


@pytest.mark.parametrize("reason", ["length", "eos_token", "stop_sequence", "aborted"])
def test_the_four_reasons(reason: str) -> None:
    assert completion(finish_reason=reason).finish_reason == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": "stop"},
        {"logprobs": []},
        {"logprobs": [-1.0, -2.0]},
        {"prompt_logprobs": [None]},
        {"top_logprobs": []},
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|need as many"):
        completion(**changes)


def test_a_completion_travels_between_processes() -> None:
    made = completion(prompt_logprobs=[None, -1.0], top_logprobs=[((3, -0.5), (4, -1.5))])
    assert pickle.loads(pickle.dumps(made)) == made
