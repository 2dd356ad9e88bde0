"""How much of a prompt runs beside sequences that decode: measured before a server lets anybody in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferometer.engine.llm import LLM
from inferometer.server.prompt_pace import MOST_STEPS, SIZES, prompt_tokens, widest
from tiny_models import tiny_model


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (lambda tokens: 1.0, 384),  # a machine that waits for weights alone
        (lambda tokens: max(1.0, tokens / 100), 256),
        (lambda tokens: 1.0 + tokens / 32, 64),
        (lambda tokens: 1.0 + tokens / 16, 32),
        (lambda tokens: 1.0 + tokens, 16),  # no piece is small enough: prompts must go on
    ],
)
def test_the_widest_piece_that_leaves_a_step_within_three(seconds: Callable[[int], float], wanted: int) -> None:
    assert MOST_STEPS == 3
    assert widest(seconds, [*SIZES, 384]) == wanted


def test_what_is_wider_than_too_wide_is_not_tried() -> None:
    tried: list[int] = []

    def seconds(tokens: int) -> float:
        tried.append(tokens)
        return 1.0 + tokens

    widest(seconds, [*SIZES, 384])
    assert tried == [0, 0, 0, 32, 32, 32]


def test_what_else_the_machine_does_meanwhile_decides_nothing() -> None:
    slow = iter([5.0, 1.0, 9.0, 2.0, 8.0, 2.9, 4.0, 4.0, 4.0])
    tried: list[int] = []

    def seconds(tokens: int) -> float:
        tried.append(tokens)
        return next(slow)

    assert widest(seconds, [*SIZES, 384]) == 64
    assert tried == [0, 0, 0, 32, 64, 64, 128, 128, 128]


def test_a_model_is_measured_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    llm = LLM(tiny_model(tmp_path, "llama", max_position_embeddings=1024), dtype="float32", device="cpu", weights="dummy")
    before = llm.generate([[1, 2, 3]])[0].token_ids
    assert prompt_tokens(llm, 384) in (*SIZES, 384)
    assert llm.generate([[1, 2, 3]])[0].token_ids == before


@pytest.mark.parametrize("positions", [4, 12, 20, 40])
def test_a_model_of_few_positions_is_measured_as_far_as_it_goes_or_not_at_all(tmp_path: Path, positions: int) -> None:
    llm = LLM(tiny_model(tmp_path, "llama", max_position_embeddings=positions), dtype="float32", device="cpu", weights="dummy")
    assert prompt_tokens(llm, 384) in (*SIZES, 384)
