"""The engine that a server's settings ask for: as many sequences and pages as they allow and there is room for."""

from __future__ import annotations

import pytest

from inferometer import LLM
from inferometer.errors import UserError
from inferometer.server.engine_process import serving_engine
from inferometer.server.settings import ServerSettings
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(tiny_model(tmp_path_factory.mktemp("engine"), "llama"), dtype="float32", device="cpu", weights="dummy", gpu_memory=0.125)


def settings(**asked: int) -> ServerSettings:
    return ServerSettings(max_input_length=32, max_total_tokens=64, **asked)


def test_a_batch_size_that_there_is_no_memory_for_is_no_mistake(llm: LLM) -> None:
    room = serving_engine(llm, settings()).pages
    engine = serving_engine(llm, settings(max_batch_size=10**7))
    assert (engine.pages, engine.seats) == (room, 128)
    with pytest.raises(UserError, match=r"^--max-batch-total-tokens 99999999 needs 6250000 pages of KV cache, there is memory for"):
        serving_engine(llm, settings(max_batch_size=10**7, max_batch_total_tokens=99999999))


def test_a_batch_size_and_a_budget_of_tokens_both_hold(llm: LLM) -> None:
    by_budget = serving_engine(llm, settings(max_batch_size=4, max_batch_total_tokens=100))
    assert (by_budget.pages, by_budget.seats) == (7, 4)
    by_size = serving_engine(llm, settings(max_batch_size=4, max_batch_total_tokens=99999999))
    assert (by_size.pages, by_size.seats) == (16, 4)
